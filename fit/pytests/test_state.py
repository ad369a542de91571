"""Modules whose state moves with every call, and trainings that amplify rounding: state moves once,
and what is not equal to the bit is said to be so.
"""

import copy
import re
import types
import unittest
import warnings
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.calls import again, drawn, refers
from _memroom_probe.fit.choose import choices, search, traits
from _memroom_probe.fit.choose.case import Case
from _memroom_probe.fit.measure import run
from _memroom_probe.fit.memory import room
from _memroom_probe.fit.remedies import checkpointing, microbatch
from training import furthest, remedies


def tight(*ids):
    return [(id, {"limit": room.HostRoom(1).held(), "failed": True}) for id in ids]


class Residual(nn.Module):
    """As image-to-image networks have it: running statistics are kept although nobody asks."""

    def __init__(self, channels):
        super().__init__()

        def norm():
            return nn.InstanceNorm2d(channels, affine=True, track_running_stats=True)

        def convolution():
            return nn.Conv2d(channels, channels, 3, 1, 1, bias=False)

        self.main = nn.Sequential(
            convolution(), norm(), nn.ReLU(inplace=True), convolution(), norm()
        )

    def forward(self, x):
        return x + self.main(x)


class Average(nn.Module):
    """Divides by a running mean that it replaces at each call, and counts its calls."""

    def __init__(self, size):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(size, 4 * size), nn.Tanh(), nn.Linear(4 * size, size))
        self.register_buffer("mean", torch.ones(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.inner(x)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().abs().mean()
        return x / self.mean * (1 + 1e-3 * self.calls)


class Codebook(nn.Module):
    """A moving average in place that the same call reads, as quantising autoencoders keep it."""

    def __init__(self, size):
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.register_buffer("codes", torch.zeros(size))

    def forward(self, x):
        x = torch.tanh(self.inner(x))
        with torch.no_grad():
            self.codes.mul_(0.9).add_(0.1 * x.mean(0))
        return x + self.codes


class Checkpointed(unittest.TestCase):
    """The blocks themselves, run by checkpointing and without it."""

    def pair(self, make, x, calls=3):
        torch.manual_seed(0)
        one = make()
        other = copy.deepcopy(one)
        for _ in range(calls):
            one(x).square().mean().backward()
            call = other.__call__
            result = checkpointing.checkpointed(call, ((x,), {}), [other])
            result.square().mean().backward()
        return one, other

    def same(self, make, x):
        one, other = self.pair(make, x)
        for (name, a), (_, b) in zip(one.named_buffers(), other.named_buffers()):
            self.assertTrue(torch.equal(a, b), "%s is moved on otherwise" % name)
        for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters()):
            self.assertTrue(torch.equal(a.grad, b.grad), "the gradient of %s" % name)
        return one, other

    def test_instance_norm(self):
        self.same(lambda: Residual(4), torch.randn(2, 4, 6, 6))

    def test_batch_norm(self):
        self.same(lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), torch.randn(6, 4))

    def test_in_place_and_read(self):
        """The second run of the very first call alone may start from what the first run left."""
        torch.manual_seed(0)
        one = Codebook(4)
        other, x = copy.deepcopy(one), torch.randn(6, 4)
        checkpointing.checkpointed(other.__call__, ((x,), {}), [other])  # seen to move
        one(x)
        for _ in range(3):
            one.zero_grad(), other.zero_grad()
            one(x).square().mean().backward()
            checkpointing.checkpointed(
                other.__call__, ((x,), {}), [other]
            ).square().mean().backward()
            self.assertTrue(torch.equal(one.codes, other.codes))
            for a, b in zip(one.parameters(), other.parameters()):
                self.assertTrue(torch.equal(a.grad, b.grad))

    def test_attributes(self):
        one, other = self.pair(lambda: Average(4), torch.randn(6, 4))
        self.assertEqual((one.calls, other.calls), (3, 3))
        self.assertTrue(torch.equal(one.mean, other.mean))

    def test_state_that_moves_later_only(self):
        """Statistics that are frozen at first: what moves is seen at each call."""
        torch.manual_seed(0)
        one = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval()
        other, x = copy.deepcopy(one), torch.randn(6, 4)
        for model in (one, other):
            for training in (False, True, True):
                model.train(training)
                call = ((x,), {})
                out = (
                    model(x)
                    if model is one
                    else checkpointing.checkpointed(model.__call__, call, [model])
                )
                out.square().mean().backward()
        for a, b in zip(one.buffers(), other.buffers()):
            self.assertTrue(torch.equal(a, b))

    def test_a_retained_graph(self):
        torch.manual_seed(0)
        one = Residual(4)
        other, x = copy.deepcopy(one), torch.randn(2, 4, 6, 6)
        for model in (one, other):
            out = (
                model(x)
                if model is one
                else checkpointing.checkpointed(model.__call__, ((x,), {}), [model])
            )
            loss = out.square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
        for a, b in zip(list(one.buffers()), list(other.buffers())):
            self.assertTrue(torch.equal(a, b))
        for a, b in zip(one.parameters(), other.parameters()):
            self.assertTrue(torch.equal(a.grad, b.grad))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(6, 24), nn.LeakyReLU(0.01), nn.Linear(24, 24), nn.LeakyReLU(0.01)
        )
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.main(x))


def penalised(dtype=torch.float32, steps=3):
    """A critic with a gradient penalty: the gradient is differentiated again."""
    torch.manual_seed(0)
    critic = Critic().to(dtype)
    optimizer, losses = torch.optim.Adam(critic.parameters(), 1e-2, (0.5, 0.9)), []
    for _ in range(steps):
        x, fake = torch.randn(8, 6, dtype=dtype), torch.randn(8, 6, dtype=dtype)
        between = (0.5 * x + 0.5 * fake).requires_grad_(True)
        score = critic(between)
        (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
        loss = critic(fake).mean() - critic(x).mean()
        loss = loss + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def closures(dtype=torch.float64, evaluations=6):
    """LBFGS evaluates the loss several times a step."""
    torch.manual_seed(0)
    model = Critic().to(dtype)
    x, y = torch.randn(8, 6, dtype=dtype), torch.randn(8, 1, dtype=dtype)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=evaluations)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        losses.append(loss.item())
        loss.backward()
        return loss

    optimizer.step(closure)
    return losses


class Temporal(nn.Module):
    """A causal convolution with normalised weights."""

    def __init__(self, norm):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.net = nn.Sequential(
            norm(nn.Conv1d(8, 16, 3, padding=2)), nn.ReLU(), norm(nn.Conv1d(16, 8, 3, padding=2))
        )
        self.decode = nn.Linear(8, 12)

    def forward(self, x):
        h = self.net(self.embed(x).transpose(1, 2))[:, :, : x.shape[1]]
        return self.decode(h.transpose(1, 2))


def characters(norm, dtype=torch.float64, steps=3):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Temporal(norm).to(dtype)
    optimizer, losses = torch.optim.SGD(model.parameters(), 4.0), []
    for _ in range(steps):
        x = torch.randint(0, 12, (8, 10))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[:, :-1]).reshape(-1, 12), x[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.15)
        optimizer.step()
        losses.append(loss.item())
    return losses


def curved():
    """Blocks whose second derivatives are not zero."""
    torch.manual_seed(0)

    def block(inputs):
        return nn.Sequential(nn.Linear(inputs, 24), nn.Tanh(), nn.Linear(24, 24), nn.Softplus())

    return nn.Sequential(block(6), block(24), block(24), nn.Linear(24, 3)).double()


def batches(steps=4):
    draws = torch.Generator().manual_seed(1)
    return [torch.randn(2, 8, 6, generator=draws, dtype=torch.float64) for _ in range(steps)]


def learns_to_learn(adapted):
    """The loss after inner steps, differentiated through them. adapted(model, x, steps) gives what
    computes with the weights that the steps led to.
    """
    model, losses = curved(), []
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for known, asked in batches():
        optimizer.zero_grad()
        loss = adapted(model, known, 2)(asked).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_functional_call(model, x, steps):
    weights = dict(model.named_parameters())
    for _ in range(steps):
        loss = torch.func.functional_call(model, weights, (x,)).square().mean()
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {k: w - 0.05 * s for (k, w), s in zip(weights.items(), slopes)}
    return lambda asked: torch.func.functional_call(model, weights, (asked,))


def by_replacing(model, x, steps):
    """A clone whose weights are replaced after each of its calls."""
    clone = copy.deepcopy(model)
    places = [(m._parameters, key) for m in clone.modules() for key in m._parameters]
    for (at, key), p in zip(places, model.parameters()):
        at[key] = p.clone()
    for _ in range(steps):
        loss, now = clone(x).square().mean(), [at[key] for at, key in places]
        for (at, key), s in zip(places, torch.autograd.grad(loss, now, create_graph=True)):
            at[key] = at[key] - 0.05 * s
    return clone


class Forces(nn.Module):
    """Returns the slope of what it computes, too."""

    def __init__(self):
        super().__init__()
        self.net = curved()

    def forward(self, x):
        x = x.detach().requires_grad_(True)
        energy = self.net(x).sum(1)
        return energy, torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


def with_forces():
    model, losses = Forces(), []
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for x, _ in batches():
        energy, force = model(x)
        loss = (energy - 1).square().mean() + force.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def now_and_then():
    """The penalty comes long after the choices were made."""
    model, losses = curved(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i, (x, _) in enumerate(batches(6)):
        x.requires_grad_(i % 3 == 2)
        y = model(x)
        loss = y.square().mean()
        if x.requires_grad:
            loss = loss + torch.autograd.grad(y.sum(), x, create_graph=True)[0].square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def kept_over_calls():
    """A graph is used again after other calls."""
    model, losses = curved(), []
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for x, other in batches(5):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        model(other).square().mean().backward()
        loss.backward()
        losses.append(sum(p.grad.abs().sum().item() for p in model.parameters()))
        optimizer.step()
    return losses


class SameMathematics(unittest.TestCase):
    """In double precision rounding is too small to be amplified: what differs is mathematics."""

    def same(self, case):
        with remedies(of=[case]):
            whole = case()
        for name, asked in {
            "pieces": [("micro_batch", {"pieces": 4})],
            "by measure": tight("micro_batch", "checkpointing"),
            "checkpointing": tight("checkpointing"),
        }.items():
            with self.subTest(way=name), remedies(*asked, of=[case]) as told:
                got = case()
                self.assertEqual(len(got), len(whole))
                if name == "checkpointing":
                    self.assertEqual(got, whole, told.text())
                self.assertLess(furthest(whole, got), 1e-9, told.text())

    def test_gradient_penalty(self):
        self.same(lambda: penalised(torch.float64))

    def test_gradient_penalty_now_and_then(self):
        self.same(now_and_then)

    def test_slopes_taken_inside_of_the_model(self):
        self.same(with_forces)

    def test_graph_kept_over_other_calls(self):
        self.same(kept_over_calls)

    def test_learning_to_learn(self):
        self.same(lambda: learns_to_learn(by_functional_call))

    def test_learning_to_learn_with_weights_replaced(self):
        self.same(lambda: learns_to_learn(by_replacing))

    def test_closures(self):
        self.same(closures)

    def test_weight_norm_by_hooks(self):
        self.same(lambda: characters(nn.utils.weight_norm))
        for norm, may in ((nn.utils.weight_norm, True), (nn.utils.spectral_norm, False)):
            block = nn.Sequential(norm(nn.Linear(4, 4)), nn.Tanh())
            self.assertEqual(again.fit_for_recompute(block) is None, may)

    def test_weight_norm_by_parametrization(self):
        self.same(lambda: characters(nn.utils.parametrizations.weight_norm))


class OwnGenerators(unittest.TestCase):
    """What draws from a generator that nobody can put back draws nothing in a trial."""

    def test_dropout_between_recurrent_layers_is_laid_aside(self):
        inner = nn.GRU(4, 4, num_layers=2, dropout=0.3)
        # as on a card, where cuDNN drops by itself
        inner.parameters = lambda: iter([types.SimpleNamespace(is_cuda=True)])
        plain = nn.GRU(4, 4, num_layers=2, dropout=0.2)  # torch's own generator: put back
        model = nn.Sequential(inner, plain)
        self.assertTrue(again.drops_by_itself(inner))
        with self.assertRaises(RuntimeError), run.put_back(model):
            self.assertEqual((inner.dropout, plain.dropout), (0.0, 0.2))
            self.assertTrue(again.drops_by_itself(inner))  # still no block to run twice
            raise RuntimeError("out of memory")
        self.assertEqual((inner.dropout, plain.dropout), (0.3, 0.2))
        inner.dropout = 0.0
        self.assertFalse(again.drops_by_itself(inner))


class Amplified(unittest.TestCase):
    def test_it_is_said(self):
        for case, why in (
            (penalised, "differentiated again"),
            (lambda: closures(torch.float32), "LBFGS"),
        ):
            with remedies(*tight("micro_batch"), of="what is said of it") as told:
                case()
            reasons = [fields.get("amplifies", "") for kind, _, fields in told if kind == "applied"]
            self.assertTrue(any(why in reason for reason in reasons), told)
            found = [float(n) for n in re.findall(r"differed by (\S+) of its", " ".join(reasons))]
            if case is not penalised:  # there it is known only after the first backward pass
                self.assertTrue(found and max(found) < 1e-5, reasons)  # rounding, no more
            self.assertEqual(case is penalised, "no remedy makes that part" in told.text(), told)

    def test_draws_from_results_are_seen_in_the_script(self):
        for line, found in (
            ("action = Categorical(logits=self.actor(h)).sample()", True),
            ("nxt = torch.multinomial(logits.softmax(-1), 1)", True),
            ("ids = multinomial(probs[:, -1], num_samples=1)", True),
            ("x = torch.multinomial(p, n, replacement=True, generator=g)", False),
            ("z = td.OneHotCategoricalStraightThrough(logits=x).rsample()", True),
            ("code = F.gumbel_softmax(self.head(h), hard=True)", True),
            ("gate = Bernoulli(probs=self.gate(h)).sample()", True),
            ("keep = torch.bernoulli(torch.sigmoid(score))", True),
            ("keep = torch.bernoulli(torch.full((8,), 0.9))", False),
            ("loss = SparseCategoricalCrossentropy(from_logits=True)", False),
            ("rows = frame.sample(100)", False),
        ):
            self.assertEqual(bool(re.search(traits.DRAWS, line)), found, line)

    def test_samples_that_are_only_shown_do_not_count(self):
        """Whether a script draws is known once it has: a text is printed after many steps."""
        with mock.patch.object(refers, "script_says", lambda pattern: pattern == traits.DRAWS):
            with remedies(*tight("micro_batch"), of="no step"):
                self.assertEqual(traits.amplifies(), "")
                torch.distributions.Categorical(logits=torch.zeros(3, 4)).sample()
                self.assertIn("drawn from the model's own results", traits.amplifies())
            self.assertFalse(drawn.has())
        self.assertIsInstance(torch.multinomial, types.BuiltinFunctionType)

    def test_a_usual_training_is_not_alarmed(self):
        with remedies(*tight("micro_batch"), of="no step") as told:
            model = Critic()
            for _ in range(3):
                model(torch.randn(8, 6)).mean().backward()
        self.assertFalse([fields for _, _, fields in told if "amplifies" in fields])

    def test_equal_to_the_bit_is_preferred_where_it_fits(self):
        pieces = choices.Choice("pieces", 50, 10, seconds=1.0, share=microbatch.Share(2))
        blocks = choices.Choice("blocks", 60, 10, twice=1.0, seconds=2.0, checkpoint=["a block"])
        whole = choices.Choice("as it is", 100, 80, seconds=1.0)

        def taken(free, amplifies):
            case = Case(lambda: None, "m", whole, [whole, pieces, blocks], amplifies=amplifies)
            return search.cheapest_if_equal({case: 1}, free)[case].words

        self.assertEqual(taken(70, ""), "pieces")
        self.assertEqual(taken(70, "LBFGS"), "blocks")
        self.assertEqual(taken(55, "LBFGS"), "pieces")
        self.assertEqual(taken(200, "LBFGS"), "as it is")


class Balanced(nn.Module):
    """Leaves a loss in an attribute, as switch layers do."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.balance = nn.Linear(8, 32), nn.Linear(32, 8), None

    def forward(self, x):
        h = torch.tanh(self.a(x))
        self.balance = h.square().mean()
        return x + self.b(h)


class LossesInAttributes(unittest.TestCase):
    def test_a_second_run_leaves_them(self):
        """Were they those of the second run, they would hold all that it computed."""
        from _memroom_probe.fit.remedies.checkpointing import checkpointed

        torch.manual_seed(0)
        layers, x = [Balanced() for _ in range(3)], torch.randn(16, 8)

        def gradients(again):
            h = x
            for layer in layers:
                layer.zero_grad()
                h = checkpointed(layer, ((h,), {}), [layer]) if again else layer(h)
            left = [layer.balance for layer in layers]
            (h.square().mean() + sum(left)).backward()
            self.assertTrue(all(m.balance is t for m, t in zip(layers, left)))
            return [p.grad.clone() for layer in layers for p in layer.parameters()]

        for a, b in zip(gradients(False), gradients(True)):
            self.assertTrue(torch.equal(a, b))


if __name__ == "__main__":
    unittest.main()
