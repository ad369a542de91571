"""Loops and modules that a remedy could spoil without anybody noticing: results are equal to the
untouched program's, or the remedy is declined with the reason and changes nothing.
"""

import dataclasses
import itertools
import random
import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.memory import room
from training import furthest, plain, remedies, sow

try:
    import numpy as np
except ImportError:
    np = None


def batches(count=4):
    torch.manual_seed(2)
    return [(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(count)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class WithLoss(Net):
    def forward(self, x, y):
        return F.cross_entropy(super().forward(x), y)


def outside(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def inside(model, batch):
    return model(*batch)


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def loop(model, step=outside, data=None, optimizer=sgd):
    """The losses of a plain loop, and where the weights came to."""
    optimizer, losses = optimizer(model.parameters()), []
    for batch in batches() if data is None else data:
        optimizer.zero_grad()
        loss = step(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses + [float(sum(p.double().sum() for p in model.parameters()))]


# --- random numbers that a second run must draw again

drawer = torch.Generator()
calls = {"made": 0}


def mixup_inside():
    class Mixes(Net):
        def forward(self, x):
            if self.training:
                x = 0.7 * x + 0.3 * x[torch.randperm(len(x))]
            return super().forward(x)

    return loop(Mixes())


def mixup_in_a_returned_loss():
    class Mixes(Net):
        def forward(self, x, y):
            order = torch.randperm(len(x))
            out = super().forward(0.7 * x + 0.3 * x[order])
            return 0.7 * F.cross_entropy(out, y) + 0.3 * F.cross_entropy(out, y[order])

    return loop(Mixes(), inside)


def skips_by_numpy():
    class Skips(Net):
        def forward(self, x):
            h = torch.tanh(self.a(x))
            return self.b(h * 2 if np.random.rand() < 0.5 else h)

    return loop(Skips(), data=batches(6))


def masks_by_numpy():
    class Masks(Net):
        def forward(self, x):
            return super().forward(x * torch.as_tensor(np.random.rand(*x.shape) < 0.5))

    return loop(Masks())


def skips_by_python():
    class Skips(Net):
        def forward(self, x):
            h = torch.tanh(self.a(x))
            return self.b(h * 2 if random.random() < 0.5 else h)

    return loop(Skips(), data=batches(6))


def own_generator():
    class Drops(Net):
        def __init__(self):
            super().__init__()
            self.drawer = torch.Generator().manual_seed(5)

        def forward(self, x):
            h = torch.tanh(self.a(x))
            return self.b(h * (torch.rand(h.shape, generator=self.drawer) < 0.5))

    return loop(Drops())


def generator_of_the_file():
    class Drops(Net):
        def forward(self, x):
            h = torch.tanh(self.a(x))
            return self.b(h * (torch.rand(h.shape, generator=drawer) < 0.5))

    drawer.manual_seed(5)
    return loop(Drops())


def counter_of_the_file():
    class Counts(Net):
        def forward(self, x):
            calls["made"] += 1
            return super().forward(x) * (1 + 0.1 * calls["made"])

    calls["made"] = 0
    return loop(Counts())


def one_mask_for_all_rows():
    class Drops(Net):
        def forward(self, x):
            return self.b(torch.tanh(self.a(x)) * (torch.rand(1, 16) < 0.5))

    return loop(Drops())


def noise_without_an_end():
    class Gumbel(Net):
        def forward(self, x):
            return F.gumbel_softmax(super().forward(x))

    return loop(Gumbel(), lambda m, b: F.nll_loss(torch.log(m(b[0]) + 1e-6), b[1]))


# --- what a trial must put back


def buffer_replaced():
    class Centres(WithLoss):
        def __init__(self):
            super().__init__()
            self.register_buffer("centre", torch.zeros(3))

        def forward(self, x, y):
            out = Net.forward(self, x)
            self.centre = 0.9 * self.centre + 0.1 * out.detach().mean(0)
            return F.cross_entropy(out - self.centre, y)

    return loop(Centres(), inside)


def attribute_replaced():
    class Centres(WithLoss):
        def __init__(self):
            super().__init__()
            self.centre = None

        def forward(self, x, y):
            out = Net.forward(self, x)
            now = out.detach().mean(0)
            self.centre = now if self.centre is None else 0.9 * self.centre + 0.1 * now
            return F.cross_entropy(out - self.centre, y)

    return loop(Centres(), inside)


def attribute_changed_in_place():
    class Centres(WithLoss):
        def __init__(self):
            super().__init__()
            self.centre = torch.zeros(3)

        def forward(self, x, y):
            out = Net.forward(self, x)
            self.centre.lerp_(out.detach().mean(0), 0.1)
            return F.cross_entropy(out - self.centre, y)

    return loop(Centres(), inside)


# --- losses that are no mean over samples, or one by other weights


def small_variance():
    class Spreads(Net):
        def forward(self, x, y):
            out = super().forward(x)
            return F.cross_entropy(out, y) + 0.01 * out.var(0).mean()

    return loop(Spreads(), inside)


def weights_of_classes():
    class Weighs(Net):
        def forward(self, x, y):
            return F.cross_entropy(super().forward(x), y, torch.tensor([0.2, 1.0, 3.0]))

    return loop(Weighs(), inside)


def reward_less_its_mean():
    class Learns(Net):
        def forward(self, x, y):
            reward = y.float()
            return -(F.log_softmax(super().forward(x), -1)[:, 0] * (reward - reward.mean())).mean()

    return loop(Learns(), inside)


def overlap_of_the_batch():
    class Overlaps(Net):
        def forward(self, x, y):
            p, t = super().forward(x).softmax(-1), F.one_hot(y, 3).float()
            return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)

    return loop(Overlaps(), inside)


def weighed_by_uncertainty():
    class Two(Net):
        def __init__(self):
            super().__init__()
            self.doubt = nn.Parameter(torch.zeros(2))

        def forward(self, x, y):
            out = super().forward(x)
            losses = torch.stack([F.cross_entropy(out, y), F.mse_loss(out[:, 0], x[:, 0])])
            return (torch.exp(-self.doubt) * losses + self.doubt).sum()

    return loop(Two(), inside)


# --- rows that see each other, or the size of the batch


def balanced_experts():
    class Experts(Net):
        def forward(self, x, y):
            p = F.softmax(super().forward(x), -1)
            share = F.one_hot(p.argmax(-1), 3).float().mean(0)
            return F.nll_loss(p.log(), y) + 3 * (share * p.mean(0)).sum()

    return loop(Experts(), inside)


def divided_by_a_root():
    class Root(Net):
        def forward(self, x, y):
            return F.cross_entropy(super().forward(x), y, reduction="sum") / len(x) ** 0.5

    return loop(Root(), inside)


def penalty_beside_a_mean():
    class Penalty(WithLoss):
        def forward(self, x, y):
            return super().forward(x, y) + 0.05 * sum(p.pow(2).sum() for p in self.parameters())

    return loop(Penalty(), inside)


def penalty_beside_a_sum():
    class Penalty(Net):
        def forward(self, x, y):
            return F.cross_entropy(super().forward(x), y, reduction="sum") + 0.05 * sum(
                p.pow(2).sum() for p in self.parameters()
            )

    return loop(Penalty(), inside, optimizer=lambda p: torch.optim.SGD(p, 0.01))


def graph():
    class Graph(Net):
        def forward(self, x, edges):
            h = torch.tanh(self.a(x))
            return self.b(h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))

    edges = torch.randint(0, 16, (2, 40), generator=torch.Generator().manual_seed(3))
    return loop(Graph(), lambda m, b: F.cross_entropy(m(b[0], edges), b[1]))


def neighbours():
    class Graph(Net):
        def forward(self, x, near):
            return super().forward(x + x[near].mean(1))

    near = torch.randint(0, 16, (16, 3), generator=torch.Generator().manual_seed(3))
    return loop(Graph(), lambda m, b: F.cross_entropy(m(b[0], near), b[1]))


def otherwise_for_many_rows():
    class Many(Net):
        def forward(self, x):
            return super().forward(x) * (2 if len(x) > 8 else 1)

    return loop(Many())


# --- what loops do


def output_changed_in_place():
    def step(model, batch):
        out = model(batch[0])
        out += 1.0
        out[:, 0] = out[:, 0] * 2
        return F.cross_entropy(out.clamp_(-3, 3), batch[1])

    return loop(Net(), step)


def hooks_on_results():
    kept = []

    def step(model, batch):
        out = model(batch[0])
        out.register_hook(lambda g: g / g.norm())
        out.retain_grad()
        kept.append(out)
        return F.cross_entropy(out, batch[1])

    return loop(Net(), step) + [float(out.grad.abs().sum()) for out in kept]


def closure():
    model, losses = Net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for batch in batches():

        def again():
            optimizer.zero_grad()
            loss = outside(model, batch)
            loss.backward()
            return loss

        losses.append(float(optimizer.step(again)))
    return losses


def attacked(model, loss_of):
    optimizer, losses = sgd(model.parameters()), []
    for x, y in batches():
        step = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            (slope,) = torch.autograd.grad(loss_of(model, x + step, y), step)
            step = (step + 0.01 * slope.sign()).detach().requires_grad_()
        optimizer.zero_grad()
        loss = loss_of(model, x + step.detach(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def attack():
    return attacked(Net(), lambda m, x, y: F.cross_entropy(m(x), y))


def attack_on_a_returned_loss():
    return attacked(WithLoss(), lambda m, x, y: m(x, y))


def sharpness():
    """Two passes a step, with the weights moved in between."""
    model, losses = Net(), []
    optimizer = sgd(model.parameters())
    for batch in batches():
        optimizer.zero_grad()
        outside(model, batch).backward()
        moves = [0.05 * p.grad / (p.grad.norm() + 1e-9) for p in model.parameters()]
        torch._foreach_add_([p.data for p in model.parameters()], moves)
        optimizer.zero_grad()
        loss = outside(model, batch)
        loss.backward()
        torch._foreach_sub_([p.data for p in model.parameters()], moves)
        optimizer.step()
        losses.append(loss.item())
    return losses


def changed_optimizer():
    model, losses = Net(), []
    optimizer = torch.optim.AdamW(model.a.parameters(), 1e-2)
    for i, batch in enumerate(batches(6)):
        if i == 2:
            optimizer.add_param_group({"params": model.b.parameters(), "lr": 1e-3})
        if i == 3:
            optimizer.param_groups[0]["lr"] = 5e-3
        if i == 4:
            for state in optimizer.state.values():
                state["exp_avg"].mul_(0.5)
        optimizer.zero_grad()
        loss = outside(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def functional_gradients():
    from torch.func import functional_call, grad

    model, losses = Net(), []
    weights = {k: v.detach().clone() for k, v in model.named_parameters()}
    for x, y in batches():

        def loss_of(w):
            return F.cross_entropy(functional_call(model, w, (x,)), y)

        losses.append(float(loss_of(weights)))
        slopes = grad(loss_of)(weights)
        weights = {k: v - 0.1 * slopes[k] for k, v in weights.items()}
    return losses


def gradients_of_each_row():
    from torch.func import functional_call, grad, vmap

    model, norms = Net(), []
    weights = {k: v.detach().clone() for k, v in model.named_parameters()}
    for x, y in batches(2):
        slopes = vmap(
            grad(lambda w, a, b: F.cross_entropy(functional_call(model, w, (a[None],)), b[None])),
            (None, 0, 0),
        )(weights, x, y)
        norms.append(float(sum(v.norm() for v in slopes.values())))
    return norms


def compiled_step():
    model, losses = Net(), []
    optimizer = sgd(model.parameters())

    @torch.compile(backend="aot_eager")
    def forward(x, y):
        return F.cross_entropy(model(x), y)

    for x, y in batches():
        optimizer.zero_grad()
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Momentum(nn.Module):
    """A frozen copy follows the network inside of forward, and a queue keeps what it gave."""

    def __init__(self, in_place):
        super().__init__()
        self.query, self.key, self.in_place = Net(), Net(), in_place
        self.key.requires_grad_(False)
        self.register_buffer("queue", torch.randn(3, 12))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                if self.in_place:
                    k.mul_(0.9).add_(q, alpha=0.1)
                else:
                    k.data = k.data * 0.9 + q.data * 0.1
            keys = self.key(x)
        logits = self.query(x) @ self.queue.clone() + keys.mean()
        self.queue[:, int(self.at)] = keys.mean(0)
        self.at[0] = (self.at[0] + 1) % 12
        return logits


def follows_in_place():
    return loop(Momentum(True))


def follows_by_assignment():
    return loop(Momentum(False))


def words_within_a_norm():
    """nn.Embedding(max_norm=...) scales its weights in forward."""
    model = nn.Sequential(nn.Embedding(9, 8, max_norm=0.7), Net())
    torch.manual_seed(5)
    data = [(torch.randint(0, 9, (16,)), torch.randint(0, 3, (16,))) for _ in range(4)]
    return loop(model, data=data)


class Styled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 4, 3, padding=1),
            nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
            nn.ReLU(inplace=True),
            nn.Conv1d(4, 4, 3, padding=1),
            nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
        )
        self.out = nn.Linear(4 * 8, 3)

    def forward(self, x):
        return self.out(self.body(x[:, None]).flatten(1))


def running_statistics_of_instances():
    model = Styled()
    return loop(model) + [float(model.body[1].running_mean.sum())]


def penalty_on_gradients():
    """Wasserstein's critic: the gradient of its input is part of the loss."""
    maker, critic, losses = nn.Linear(4, 8), Net(), []
    one, other = sgd(maker.parameters()), sgd(critic.parameters())
    for x, _ in batches():
        fake = maker(torch.randn(len(x), 4))
        mixed = (0.5 * x + 0.5 * fake.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake.detach()).mean() - critic(x).mean()
        loss = loss + 0.1 * ((slope.norm(dim=1) - 1) ** 2).mean()
        other.zero_grad()
        loss.backward()
        other.step()
        one.zero_grad()
        (-critic(fake).mean()).backward()
        one.step()
        losses.append(loss.item())
    return losses


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(8, 8, 2), nn.Linear(8, 3)

    def forward(self, x, hidden):
        y, hidden = self.rnn(x, hidden)
        return self.out(y), hidden


def weights_moved_by_hand():
    """No optimizer, and a state that is carried from batch to batch."""
    model, hidden, losses = Remembering(), None, []
    hidden = (torch.zeros(2, 16, 8), torch.zeros(2, 16, 8))
    torch.manual_seed(4)
    for _ in range(4):
        x, y = torch.randn(5, 16, 8), torch.randint(0, 3, (5, 16))
        model.zero_grad()
        hidden = tuple(h.detach() for h in hidden)
        out, hidden = model(x, hidden)
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.2)
        losses.append(loss.item())
    return losses


def two_players_one_graph():
    maker, judge, losses = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)), Net(), []
    first, second = (
        torch.optim.Adam(maker.parameters(), 1e-3),
        torch.optim.Adam(judge.parameters(), 1e-3),
    )
    for x, y in batches():
        made = maker(torch.randn(16, 4))
        to_fool = F.cross_entropy(judge(made), y)
        to_tell = outside(judge, (x, y)) + F.cross_entropy(judge(made.detach()), (y + 1) % 3)
        first.zero_grad()
        to_fool.backward(retain_graph=True)
        first.step()
        second.zero_grad()
        to_tell.backward()
        second.step()
        losses += [to_fool.item(), to_tell.item()]
    return losses


def reversed_gradients():
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return -0.3 * grad

    class Heads(Net):
        def __init__(self):
            super().__init__()
            self.c = nn.Linear(16, 2)

        def forward(self, x):
            h = torch.tanh(self.a(x))
            return {"kind": self.b(h), "domain": self.c(Reverse.apply(h))}

    def step(model, batch):
        out = model(batch[0])
        return F.cross_entropy(out["kind"], batch[1]) + F.cross_entropy(out["domain"], batch[1] % 2)

    return loop(Heads(), step)


def tensors_kept_by_hand():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = x.detach().clone()
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * ctx.kept

    class Squares(Net):
        def forward(self, x):
            return self.b(Square.apply(self.a(x)))

    return loop(Squares())


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    names: list


def batches_as_records():
    class Takes(WithLoss):
        def forward(self, batch):
            return super().forward(batch.x, batch.y)

    return loop(Takes(), lambda m, b: m(Batch(*b, ["n"] * 16)))


def batches_as_objects():
    class Thing:
        pass

    class Takes(Net):
        def forward(self, thing):
            return super().forward(thing.x)

    def step(model, batch):
        thing = Thing()
        thing.x = batch[0]
        return F.cross_entropy(model(thing), batch[1])

    return loop(Takes(), step)


def data_without_a_length():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            source = torch.Generator().manual_seed(1)
            for i in range(44):
                yield torch.randn(8, generator=source), i % 3

    return loop(Net(), data=torch.utils.data.DataLoader(Stream(), batch_size=12))


NUMPY = (skips_by_numpy, masks_by_numpy)
CASES = (
    mixup_inside,
    mixup_in_a_returned_loss,
    skips_by_python,
    own_generator,
    generator_of_the_file,
    counter_of_the_file,
    one_mask_for_all_rows,
    noise_without_an_end,
    buffer_replaced,
    attribute_replaced,
    attribute_changed_in_place,
    small_variance,
    weights_of_classes,
    reward_less_its_mean,
    overlap_of_the_batch,
    weighed_by_uncertainty,
    balanced_experts,
    divided_by_a_root,
    penalty_beside_a_mean,
    penalty_beside_a_sum,
    graph,
    neighbours,
    otherwise_for_many_rows,
    output_changed_in_place,
    hooks_on_results,
    closure,
    attack,
    attack_on_a_returned_loss,
    sharpness,
    changed_optimizer,
    functional_gradients,
    gradients_of_each_row,
    compiled_step,
    follows_in_place,
    follows_by_assignment,
    words_within_a_norm,
    running_statistics_of_instances,
    penalty_on_gradients,
    weights_moved_by_hand,
    two_players_one_graph,
    reversed_gradients,
    tensors_kept_by_hand,
    batches_as_records,
    batches_as_objects,
    data_without_a_length,
)


def tight(*ids):
    """As if there were no room at all: everything that can be is made smaller."""
    return [(id, {"limit": room.HostRoom(1).held(), "failed": True}) for id in ids]


def ways():
    return {
        "pieces": [("micro_batch", {"pieces": 4})],
        "by measure": tight("micro_batch", "checkpointing"),
        "checkpointing": tight("checkpointing"),
        "loss in pieces": [("chunked_loss", {"above": 1})],
        "host memory": [("activation_offload", {"above": 16})],
        "compiler": [("activation_budget", {"budget": 0.3})],
    }


class Hostile(unittest.TestCase):
    def run_once(self, case, asked=()):
        if asked and plain([case]) is None:
            Hostile.run_once(self, case)
        sow(0)
        usual = F.cross_entropy
        try:
            with remedies(*asked, of=[case]) as told:
                return case(), told
        finally:
            F.cross_entropy = usual

    def test_each(self):
        for case in CASES + (NUMPY if np is not None else ()):
            whole, _ = self.run_once(case)
            for name, asked in ways().items():
                with self.subTest(case=case.__name__, way=name):
                    got, told = self.run_once(case, asked)
                    self.assertEqual(len(got), len(whole))
                    self.assertLess(furthest(whole, got), 1e-5, told.text())

    def test_reasons(self):
        for case, reason in (
            (mixup_inside, "mixed with each other at random"),
            (balanced_experts, "not a weighted mean"),
            (graph, "numbers of samples"),
            (neighbours, "samples interact"),
            (follows_in_place, "every call changes parameter key.a.bias"),
            (follows_by_assignment, "every call changes parameter key.a.bias"),
            (otherwise_for_many_rows, "the size of the batch"),
            (batches_as_objects, "holds tensors in a way that is not known"),
        ):
            with self.subTest(case=case.__name__):
                _, told = self.run_once(case, ways()["pieces"])
                self.assertIn(reason, told.text())

    def test_a_second_run_that_differs_is_refused(self):
        """A source of numbers that nobody can put back."""

        class Strange(Net):
            def forward(self, x):
                return super().forward(x) * (1 + 0.1 * next(self.endless[0]))

        def case():
            model = Strange()
            model.endless = (iter(range(1000)),)
            return loop(model)

        for name in ("by measure", "checkpointing"):
            _, told = self.run_once(case, ways()[name])
            self.assertIn("a second run gives other results", told.text())
            self.assertNotIn("applied", told.kinds("checkpointing") + told.kinds("micro_batch"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.back = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.back(torch.relu(self.wide(x)))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Sharded(unittest.TestCase):
    def test_blocks_are_checkpointed(self):
        """Calls of a sharded module are collective: nothing is tried or split, and blocks that
        every rank sees alike are computed again, with equal losses.
        """
        import functools
        import tempfile

        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        def sharded(old):
            torch.manual_seed(0)
            model = Stack()
            if old:
                wrap = functools.partial(
                    transformer_auto_wrap_policy, transformer_layer_cls={Block}
                )
                return FullyShardedDataParallel(
                    model, auto_wrap_policy=wrap, device_id=torch.device("cpu")
                )
            mesh = init_device_mesh("cpu", (1,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            return fully_shard(model, mesh=mesh)

        def case(old):
            model, losses = sharded(old), []
            opt = torch.optim.AdamW(model.parameters(), 0.01)
            forward = Block.forward
            times = []
            try:
                Block.forward = lambda self, x: times.append(1) or forward(self, x)
                for _ in range(3):
                    loss = model(torch.randn(4, 8)).pow(2).mean()
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                    losses.append(loss.item())
            finally:
                Block.forward = forward
            return losses, len(times)

        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group(
                "gloo", init_method="file://%s/meet" % folder, rank=0, world_size=1
            )
            try:
                for old in (True, False):
                    (whole, times), _ = Hostile.run_once(self, lambda: case(old))
                    self.assertEqual(times, 9)
                    for name, twice in (("pieces", False), ("by measure", True)):
                        (got, times), told = Hostile.run_once(self, lambda: case(old), ways()[name])
                        self.assertEqual(whole, got)
                        self.assertIn("its parameters are sharded (FSDP)", told.text())
                        self.assertEqual(times, 18 if twice else 9, told.text())
            finally:
                dist.destroy_process_group()


class ToTheBit(unittest.TestCase):
    def test_loss_in_pieces(self):
        from _memroom_probe.fit.remedies import chunked_loss

        target = torch.randint(0, 50, (200,))
        target[::7] = -100
        for dtype, reduction, autocast in itertools.product(
            (torch.float32, torch.bfloat16), ("mean", "sum"), (False, True)
        ):
            logits = (3 * torch.randn(200, 50)).to(dtype).requires_grad_()
            usual, losses, grads, piece = F.cross_entropy, [], [], chunked_loss.PIECE
            try:
                chunked_loss.PIECE = 4096
                with remedies(("chunked_loss", {"above": 1}), of="no step"):
                    for function in (usual, F.cross_entropy):
                        logits.grad = None
                        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                            losses.append(1.7 * function(logits, target, reduction=reduction))
                        losses[-1].backward()
                        grads.append(logits.grad)
            finally:
                F.cross_entropy, chunked_loss.PIECE = usual, piece
            self.assertEqual(*[loss.dtype for loss in losses])
            self.assertTrue(torch.equal(*grads), (dtype, reduction, autocast))

    def test_loss_in_pieces_twice(self):
        logits, target, usual = (
            torch.randn(6, 5, dtype=torch.float64, requires_grad=True),
            torch.randint(0, 5, (6,)),
            F.cross_entropy,
        )
        try:
            with remedies(("chunked_loss", {"above": 1}), of="no step"):
                self.assertTrue(
                    torch.autograd.gradcheck(lambda x: F.cross_entropy(x, target), logits)
                )
                self.assertTrue(
                    torch.autograd.gradgradcheck(lambda x: F.cross_entropy(x, target), logits)
                )
        finally:
            F.cross_entropy = usual


if __name__ == "__main__":
    unittest.main()
