"""Whole loops as people write them, in double precision, so that wrong mathematics cannot hide
behind rounding: two optimizers and a gradient penalty, modules called several times a step, parts
called one by one, in-place layers, lists of images, time before batch, optimizers changed on the
way. Each is run as it is and under every way of making it smaller.
"""

import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.choose import governor, search
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset
from training import remedies, sow

PIECES = [("micro_batch", {"size": 2})]
TIGHT = [(id, {"failed": True, "limit": 1}) for id in ("micro_batch", "checkpointing")]
SOME = [(id, {"failed": True}) for id in ("micro_batch", "checkpointing")]
BLOCKS = [("checkpointing", {"failed": True, "limit": 1})]
AWAY = [("activation_offload", {"above": 64})]


def generator():
    return torch.Generator().manual_seed(1)


def randn(*shape, g):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def stage(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.LeakyReLU(0.2))


def gan_with_penalty():
    make, judge = (
        nn.Sequential(stage(16, 64), stage(64, 64), nn.Linear(64, 32)),
        nn.Sequential(stage(32, 64), stage(64, 64), nn.Linear(64, 1)),
    )
    a, b = (
        torch.optim.Adam(make.parameters(), 1e-3, betas=(0.0, 0.9)),
        torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.0, 0.9)),
    )
    g = generator()
    for _ in range(4):
        real, fake = randn(12, 32, g=g), make(randn(12, 16, g=g))
        share = torch.rand(12, 1, generator=g, dtype=torch.float64)
        between = (share * real + (1 - share) * fake.detach()).requires_grad_(True)
        slope = torch.autograd.grad(judge(between).sum(), between, create_graph=True)[0]
        loss = (
            judge(fake.detach()).mean()
            - judge(real).mean()
            + 10 * ((slope.norm(2, 1) - 1) ** 2).mean()
        )
        b.zero_grad()
        loss.backward()
        b.step()
        made = -judge(fake).mean()
        a.zero_grad()
        made.backward()
        a.step()
        yield from (loss, made)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        s = torch.sigmoid(ctx.saved_tensors[0])
        return grad * (s + ctx.saved_tensors[0] * s * (1 - s))


class Residual(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        return x + self.down(Swish.apply(self.up(self.norm(x))))


def optimizers_changed_on_the_way():
    model = nn.Sequential(*[Residual() for _ in range(4)], nn.Linear(32, 4))
    optimizer, g = torch.optim.AdamW(model.parameters(), 1e-3), generator()
    for step in range(6):
        x, y = randn(12, 32, g=g), torch.randint(0, 4, (12,), generator=g)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        if step == 1:
            optimizer.param_groups[0]["lr"] = 5e-4
        if step == 2:
            more = nn.Linear(1, 1)
            optimizer.add_param_group({"params": more.parameters(), "lr": 1e-2})
        if step == 3:
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        yield loss


class Triplet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(8, 6)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def one_module_three_times():
    model, project, g = (
        Triplet(),
        nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)),
        generator(),
    )
    optimizer = torch.optim.Adam(
        [{"params": model.parameters(), "lr": 1e-3}, {"params": project.parameters(), "lr": 5e-3}]
    )
    for _ in range(4):
        a, b, c = (project(model(randn(6, 3, 8, 8, g=g))) for _ in range(3))
        loss = F.triplet_margin_loss(a, b, c, margin=3.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss
    yield sum(buffer.double().sum() for buffer in model.buffers())


class ChangesItsInput(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.first, self.conv, self.norm, self.last = (
            nn.ReLU(inplace=True),
            nn.Conv2d(c, c, 3, padding=1),
            nn.BatchNorm2d(c),
            nn.Conv2d(c, c, 3, padding=1),
        )

    def forward(self, x):
        x = self.first(x)
        return x + self.last(F.relu(self.norm(self.conv(x))))


def blocks_that_change_their_input():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Sequential(*[ChangesItsInput() for _ in range(4)]),
        nn.Flatten(),
        nn.Linear(8 * 36, 5),
    )
    yield from classified(model, lambda g: randn(6, 3, 6, 6, g=g))


def flat_sequential():
    layers = [
        layer
        for i, o in ((3, 8), (8, 8), (8, 12), (12, 12))
        for layer in (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
    ]
    model = nn.Sequential(nn.Sequential(*layers), nn.Flatten(), nn.Linear(12 * 64, 5))
    yield from classified(model, lambda g: randn(6, 3, 8, 8, g=g))
    yield sum(buffer.double().sum() for buffer in model.buffers())


def classified(model, make, classes=5):
    optimizer, g = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), generator()
    for _ in range(4):
        x = make(g)
        loss = F.cross_entropy(
            model(x), torch.randint(0, classes, (len(x),), generator=g), label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks, self.out = (
            nn.Embedding(50, 32),
            nn.ModuleList([Residual() for _ in range(4)]),
            nn.Linear(32, 50),
        )

    def compute_loss(self, ids):
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.out(h[:, :-1]).transpose(1, 2), ids[:, 1:])


def parts_called_one_by_one():
    model, g = Language(), generator()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(4):
        loss = model.compute_loss(torch.randint(0, 50, (8, 12), generator=g))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def one_graph_several_passes():
    model = nn.Sequential(
        nn.Linear(8, 32),
        nn.Tanh(),
        nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()),
        nn.Linear(32, 1),
    )
    optimizer, g = torch.optim.Adam(model.parameters(), 1e-3), generator()
    for _ in range(3):
        x = randn(12, 8, g=g).requires_grad_(True)
        y = model(x)
        a, b = y.pow(2).mean(), (y - 1).abs().mean()
        optimizer.zero_grad()
        a.backward(retain_graph=True)
        b.backward(retain_graph=True)
        torch.autograd.grad(y.sum(), x, create_graph=True)[0].pow(2).mean().backward()
        optimizer.step()
        yield a + b
    optimizer, x, t = (
        torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3),
        randn(12, 8, g=g),
        randn(12, 1, g=g),
    )

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), t)
        loss.backward()
        return loss

    for _ in range(2):
        yield optimizer.step(closure)


class Recurrent(nn.Module):
    """As in PyTorch's word language model: (time, batch) in, time and batch flattened into one
    dimension out.
    """

    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(40, 16), nn.LSTM(16, 16, 2), nn.Linear(16, 40)

    def forward(self, ids, state):
        h, state = self.rnn(self.embed(ids), state)
        return self.out(h).view(-1, 40), state


def time_before_batch():
    model, g = Recurrent(), generator()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    data = torch.randint(0, 40, (4 * 7 + 1, 6), generator=g)
    state = torch.zeros(2, 6, 16), torch.zeros(2, 6, 16)
    for i in range(0, 28, 7):
        optimizer.zero_grad()
        out, state = model(data[i : i + 7], tuple(s.detach() for s in state))
        loss = F.cross_entropy(out, data[i + 1 : i + 8].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        yield loss


class Masked(nn.Module):
    """A square mask as long as the batch: which of the two a dimension is cannot be seen, only
    tried.
    """

    def __init__(self):
        super().__init__()
        self.core, self.out = nn.Transformer(16, 2, 1, 1, 32, 0.0), nn.Linear(16, 3)

    def forward(self, source, target, target_mask):
        return self.out(self.core(source, target, tgt_mask=target_mask))


def square_mask():
    model, g = Masked(), generator()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(6).double()
    for _ in range(4):
        loss = model(randn(9, 6, 16, g=g), randn(6, 6, 16, g=g), mask).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


class Detector(nn.Module):
    """Images of different sizes in a list, their targets in a list of dicts, a dict of losses
    out.
    """

    def __init__(self):
        super().__init__()
        self.body, self.box, self.kind = (
            nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
            ),
            nn.Linear(8, 4),
            nn.Linear(8, 3),
        )

    def forward(self, images, targets):
        features = [self.body(image[None]).mean((2, 3)) for image in images]
        box = sum(
            F.smooth_l1_loss(self.box(f), t["boxes"].mean(0, keepdim=True))
            for f, t in zip(features, targets)
        ) / len(images)
        kind = sum(
            F.cross_entropy(self.kind(f), t["labels"][:1]) for f, t in zip(features, targets)
        ) / len(images)
        return {"box": box, "kind": kind}


def lists_of_images():
    model, g = Detector(), generator()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(4):
        images = [randn(3, 8 + 2 * (i % 3), 10, g=g) for i in range(6)]
        targets = [
            {"boxes": randn(2, 4, g=g), "labels": torch.randint(0, 3, (2,), generator=g)}
            for _ in images
        ]
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


class ChecksItself(nn.Module):
    """Checkpoints its own blocks, in either of torch's two ways; returns its loss in every other
    step.
    """

    def __init__(self, reentrant):
        super().__init__()
        self.embed, self.blocks, self.out, self.reentrant = (
            nn.Embedding(60, 32),
            nn.ModuleList([stage(32, 32) for _ in range(3)]),
            nn.Linear(32, 60),
            reentrant,
        )

    def forward(self, ids, labels=None):
        h = self.embed(ids)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.reentrant)
        logits = self.out(h)
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def checkpoints_of_its_own():
    for reentrant in (True, False):
        model, g = ChecksItself(reentrant), generator()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for step in range(4):
            ids = torch.randint(0, 60, (8, 10), generator=g)
            loss = (
                model(ids, ids)
                if step % 2
                else F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.gate = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 4)

    def forward(self, x):
        share = self.gate(x).softmax(-1)
        self.balance = (share.mean(0) ** 2).sum()  # for the loop
        return x + self.down(F.relu(self.up(x))) * share[:, :1]


class Experts(nn.Module):
    """Leaves a loss behind in its attributes: each expert's, or all of them in a list that the loop
    empties.
    """

    def __init__(self, in_list):
        super().__init__()
        self.experts, self.out, self.in_list, self.losses = (
            nn.ModuleList([Expert() for _ in range(3)]),
            nn.Linear(16, 3),
            in_list,
            [],
        )

    def forward(self, x):
        for expert in self.experts:
            x = expert(x)
            if self.in_list:
                self.losses.append(expert.balance)
        return self.out(x)


def losses_left_in_attributes():
    for in_list in (False, True):
        model, g = Experts(in_list), generator()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            x, y = randn(12, 16, g=g), torch.randint(0, 3, (12,), generator=g)
            loss = F.cross_entropy(model(x), y) + 0.5 * sum(
                model.losses if in_list else [e.balance for e in model.experts]
            )
            yield len(model.losses)
            model.losses.clear()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss


def lazy_layers():
    model = nn.Sequential(
        nn.LazyConv2d(8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(5),
    )
    with torch.no_grad():
        model(torch.zeros(2, 3, 6, 6))
    yield from classified(model, lambda g: randn(6, 3, 6, 6, g=g))


class Stream(IterableDataset):
    def __iter__(self):
        g = generator()
        for i in range(41):
            yield randn(5 + i % 3 * 4, 16, g=g), i % 4


def padded(rows):
    return (
        nn.utils.rnn.pad_sequence([x for x, _ in rows], batch_first=True),
        torch.tensor([len(x) for x, _ in rows]),
        torch.tensor([y for _, y in rows]),
    )


class Packs(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x, lengths):
        _, h = self.rnn(
            nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        )
        return self.out(h[-1])


def stream_without_length():
    model = Packs()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for x, lengths, y in DataLoader(Stream(), batch_size=12, collate_fn=padded):
        loss = F.cross_entropy(model(x, lengths), y, reduction="sum") / len(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


LOOPS = [
    gan_with_penalty,
    optimizers_changed_on_the_way,
    one_module_three_times,
    blocks_that_change_their_input,
    flat_sequential,
    parts_called_one_by_one,
    one_graph_several_passes,
    time_before_batch,
    square_mask,
    lists_of_images,
    stream_without_length,
    checkpoints_of_its_own,
    losses_left_in_attributes,
    lazy_layers,
]


class Loops(unittest.TestCase):
    def setUp(self):
        torch.set_default_dtype(torch.float64)

    def tearDown(self):
        torch.set_default_dtype(torch.float32)

    ran: dict = {}  # what came of a loop with what was asked for

    def run_with(self, loop, asked):
        if (loop, str(asked)) not in self.ran:
            if asked:
                self.run_with(loop, [])
            sow(0)
            with remedies(*asked, of=[loop]) as told:
                self.ran[loop, str(asked)] = [float(value) for value in loop()], told
        return self.ran[loop, str(asked)]

    def test_each(self):
        for loop in LOOPS:
            whole, _ = self.run_with(loop, [])
            for name, asked in (
                ("pieces", PIECES),
                ("tight", TIGHT),
                ("some", SOME),
                ("blocks", BLOCKS),
                ("away", AWAY),
            ):
                with self.subTest(loop=loop.__name__, how=name):
                    got, told = self.run_with(loop, asked)
                    self.assertEqual(len(whole), len(got))
                    worst = max(abs(a - b) / max(abs(a), 1e-3) for a, b in zip(whole, got))
                    self.assertLess(worst, 1e-9, told.text())

    def test_what_could_be_done_is_done(self):
        """Nothing of this may be declined: rows are independent, or there are parts to
        checkpoint.
        """
        for loop, asked in (
            (time_before_batch, PIECES),
            (square_mask, PIECES),
            (lists_of_images, PIECES),
            (stream_without_length, PIECES),
            (flat_sequential, BLOCKS),
            (parts_called_one_by_one, TIGHT),
            (one_module_three_times, BLOCKS),
        ):
            with self.subTest(loop.__name__):
                _, told = self.run_with(loop, asked)
                self.assertIn("applied", [kind for kind, _, _ in told], told.text())
                self.assertNotIn("declined", [kind for kind, _, _ in told], told.text())


class Evaluation(unittest.TestCase):
    def test_smaller_pieces_when_it_runs_out(self):
        """A batch that is too large without gradients is taken in halves until it fits."""
        seen = []

        class Small(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 2)

            def forward(self, x):
                seen.append(len(x))
                if len(x) > 5:
                    raise torch.cuda.OutOfMemoryError("out of memory")
                return self.linear(x)

        model, x = Small().eval(), torch.randn(16, 4)
        with remedies(*SOME, of="no step"), torch.no_grad():
            got = model(x)
            seen.clear()
            model(x)
        # Rounding depends on the number of rows, and some of these random values are near zero.
        self.assertTrue(torch.allclose(got, model.linear(x), atol=1e-6))
        self.assertEqual(seen, [4, 4, 4, 4])  # the second time it is known


class Together(unittest.TestCase):
    def test_calls_that_wait_for_one_backward_pass(self):
        """Three calls of one module and one of another are seen as what they are."""
        torch.manual_seed(0)
        with remedies(*TIGHT, of="no step"):
            from _memroom_probe.fit.calls import outermost

            chief = next(h for h in outermost._handlers if isinstance(h, governor.Governor))
            a, b = (
                nn.Sequential(Residual(), Residual()),
                nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 2)),
            )
            loss = sum(b(a(torch.randn(6, 32))).sum() for _ in range(3))
            counts = sorted(chief.settling.step.together.values())
            self.assertEqual(counts, [3, 3])
            self.assertFalse(chief.settling.step.is_over())
            loss.backward()
            self.assertTrue(chief.settling.step.is_over())

    def test_choices_that_fit_together(self):
        class It:
            def __init__(self, seconds, needs, stays):
                self.seconds = self.price = seconds
                self.needs, self.stays = needs, stays

        class Case:
            def __init__(self, *candidates):
                self.candidates = candidates

        dear, cheap = Case(It(1, 100, 80), It(9, 30, 10)), Case(It(1, 100, 80), It(2, 40, 20))
        taken = search.cheapest({dear: 1, cheap: 1}, 130)
        self.assertEqual((taken[dear].seconds, taken[cheap].seconds), (1, 2))
        taken = search.cheapest({dear: 1, cheap: 1}, 60)
        self.assertEqual((taken[dear].seconds, taken[cheap].seconds), (9, 2))
        self.assertEqual(search.cheapest({cheap: 3}, 100)[cheap].seconds, 2)


if __name__ == "__main__":
    unittest.main()
