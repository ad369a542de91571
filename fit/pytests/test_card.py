"""Whole loops under 60 or 65 % of what they take, on a card that counts: through in one run, with
equal losses.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import unittest
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.batch import tryout
from _memroom_probe.fit.batch.inputs import any_inputs
from _memroom_probe.fit.calls import tree
from _memroom_probe.fit.choose import governor, unwatched
from _memroom_probe.fit.measure import cost as measure
from _memroom_probe.fit.measure import spaces
from _memroom_probe.fit.remedies import activation_offload, checkpointing, recurrent
from card import ASKED, Card, inserted, run_on
from training import furthest, remedies


class UNet(nn.Module):
    """Gradients of its skip connections wait for the other end, which no measurement of a block
    shows.
    """

    def __init__(self, c=12):
        super().__init__()
        self.inp = self.block(3, c)
        self.downs = nn.ModuleList(self.block(c, c) for _ in range(3))
        self.ups = nn.ModuleList(self.block(2 * c, c) for _ in range(3))
        self.out = nn.Conv2d(c, 3, 1)

    def block(self, i, o):
        return nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.SiLU(), nn.Conv2d(o, o, 1)
        )

    def forward(self, x):
        x, skips = self.inp(x), []
        for down in self.downs:
            x = down(x)
            skips.append(x)
        for up in self.ups:
            x = up(torch.cat([x, skips.pop()], 1))
        return self.out(x)


def unet():
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(5):
        x = torch.randn(8, 3, 16, 16)
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Decoder(nn.Module):
    def __init__(self, d=24, words=200):
        super().__init__()
        self.emb, self.k, self.q = nn.Embedding(words, d), nn.Linear(d, d), nn.Linear(d, d)
        self.cell, self.out = nn.GRUCell(d, d), nn.Linear(d, words)

    def forward(self, token, hidden, memory):
        score = torch.tanh(self.k(memory) + self.q(hidden)[:, None]).sum(-1)
        context = (score.softmax(1)[..., None] * memory).sum(1)
        hidden = self.cell(self.emb(token) + context, hidden)
        return F.log_softmax(self.out(hidden), -1), hidden


def unrolled():
    """The decoder is called many times before one backward pass, each time with the same memory."""
    model, rows, length = Decoder(), 12, 24
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(4):
        memory = torch.randn(rows, length, 24)
        target = torch.randint(0, 200, (rows, length))
        hidden, loss = memory.mean(1), 0.0
        for t in range(length):
            out, hidden = model(target[:, t - 1], hidden, memory)
            loss = loss + F.nll_loss(out, target[:, t])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def convolutions(c=6):
    return nn.Sequential(
        nn.Conv2d(3, c, 3, padding=1),
        *[
            nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.GroupNorm(2, c), nn.Softplus())
            for _ in range(4)
        ],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(c, 5),
    )


def penalty():
    """A critic whose gradients by its input are part of its loss."""
    critic = convolutions()
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    for _ in range(4):
        real, fake = torch.randn(2, 8, 3, 12, 12)
        between = (0.3 * real + 0.7 * fake).requires_grad_()
        out = critic(between)
        (g,) = torch.autograd.grad(out, between, torch.ones_like(out), None, True)
        loss = (
            critic(fake).mean() - critic(real).mean() + (g.flatten(1).norm(dim=1) - 1).mean() ** 2
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def learns_to_learn():
    """Two inner steps with their graphs, the outer loss through them."""
    net = convolutions()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(4):
        total = 0.0
        optimizer.zero_grad()
        for _ in range(2):
            x, y = torch.randn(8, 3, 12, 12), torch.randint(0, 5, (8,))
            weights = dict(net.named_parameters())
            for _ in range(2):
                inner = F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)
                grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
                weights = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), grads)}
            outer = F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)
            outer.backward()
            total += outer.item()
        optimizer.step()
        yield total


def equation():
    """Second derivatives by the input, of a network without convolutions."""
    hidden = [nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(3)]
    net = nn.Sequential(nn.Linear(1, 24), *hidden, nn.Linear(24, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(4):
        x = torch.rand(200, 1, requires_grad=True)
        u = net(x)
        (d,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (dd,) = torch.autograd.grad(d.sum(), x, create_graph=True)
        loss = (dd + u).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def drawn_image():
    """The picture is what is learnt; the network that looks at it is not trained."""
    eye = convolutions().requires_grad_(False)
    wanted = eye(torch.rand(8, 3, 12, 12))
    image = torch.rand(8, 3, 12, 12, requires_grad=True)
    optimizer = torch.optim.Adam([image], 1e-2)
    for _ in range(4):
        loss = (eye(image) - wanted).square().mean() + image.diff(dim=-1).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Sentence(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.emb, self.out = nn.Embedding(50, d), nn.Linear(d, 50)
        layer = nn.TransformerEncoderLayer(d, 2, 4 * d, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, embedded):
        return self.out(self.body(embedded))


def soft_prompt():
    """A few vectors before the words are learnt, by a model that is not trained."""
    model = Sentence().requires_grad_(False)
    prompt = nn.Parameter(0.1 * torch.randn(4, 16))
    optimizer = torch.optim.SGD([prompt], 0.1)
    for _ in range(4):
        words = torch.randint(0, 50, (8, 12))
        embedded = torch.cat([prompt.expand(8, 4, 16), model.emb(words)], 1)
        loss = F.cross_entropy(model(embedded)[:, 4:].flatten(0, 1), words.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def seen_by_another():
    """A network is trained by what another one, which is not, sees in its results."""
    net, eye = nn.Conv2d(3, 3, 3, padding=1), convolutions(12).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(4):
        x = torch.rand(8, 3, 12, 12)
        loss = (eye(net(x)) - eye(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def plain_tensors():
    """A network as a function of a list of tensors."""
    widths = [8, 64, 64, 64, 64, 1]
    pairs = list(zip(widths, widths[1:]))
    weights = [(torch.randn(a, b) / a**0.5).requires_grad_() for a, b in pairs]
    optimizer = torch.optim.SGD(weights, 1e-2)
    data = torch.randn(400, 8)
    for _ in range(4):
        x = data
        for w in weights[:-1]:
            x = torch.sin(x @ w)
        loss = (x @ weights[-1] - data[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def gaussian_process():
    """The likelihood of all samples at once, by a sum of kernels: each makes matrices of samples by
    samples.
    """
    x, y = torch.rand(60, 3), torch.rand(60)
    logs = [torch.full((), float(i), requires_grad=True) for i in range(-3, 3)]
    optimizer = torch.optim.Adam(logs, 0.1)
    far = torch.cdist(x, x)
    for _ in range(4):
        matrix = torch.eye(60)
        for log in logs:
            scaled = far / log.exp()
            matrix = matrix + (1 + scaled) * torch.exp(-scaled) * torch.cos(scaled)
        factor = torch.linalg.cholesky(matrix)
        alpha = torch.cholesky_solve(y[:, None], factor)
        loss = 0.5 * (y @ alpha).sum() + factor.diagonal().log().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def simulated():
    """A field that spreads; how fast at each place is learnt."""
    speed = torch.zeros(40, 40, requires_grad=True)
    begin, wanted = torch.rand(40, 40), torch.rand(40, 40)
    optimizer = torch.optim.Adam([speed], 1e-2)
    for _ in range(4):
        field = begin
        for _ in range(8):
            around = field.roll(1, 0) + field.roll(-1, 0) + field.roll(1, 1) + field.roll(-1, 1)
            field = field + 0.2 * torch.sigmoid(speed) * torch.tanh(around - 4 * field)
        loss = (field - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def tower(i, o):
    hidden = [nn.Sequential(nn.Linear(48, 48), nn.LayerNorm(48), nn.GELU()) for _ in range(4)]
    return nn.Sequential(nn.Linear(i, 48), *hidden, nn.Linear(48, o))


def actor_and_critics():
    """Critics are trained alone, and then wait with the actor that they judge."""
    actor, critics = tower(10, 4), [tower(14, 1) for _ in range(2)]
    for_actor = torch.optim.Adam(actor.parameters(), 1e-3)
    for_critics = torch.optim.Adam([p for c in critics for p in c.parameters()], 1e-3)
    for _ in range(4):
        state, action, value = torch.randn(200, 10), torch.randn(200, 4), torch.randn(200, 1)
        seen = torch.cat([state, action], 1)
        first = sum(F.mse_loss(c(seen), value) for c in critics)
        for_critics.zero_grad()
        first.backward()
        for_critics.step()
        seen = torch.cat([state, torch.tanh(actor(state))], 1)
        second = -torch.min(critics[0](seen), critics[1](seen)).mean()
        for_actor.zero_grad()
        second.backward()
        for_actor.step()
        yield first.item() + second.item()


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        tables = [nn.EmbeddingBag(40, 16, mode="sum", sparse=True) for _ in range(6)]
        self.tables, self.top = nn.ModuleList(tables), tower(96, 1)

    def forward(self, looked_up):
        return self.top(torch.cat([t(i) for t, i in zip(self.tables, looked_up)], 1)).squeeze(1)


def sparse_tables(dense=torch.optim.Adagrad, sparse=torch.optim.SparseAdam):
    """Gradients with an entry for each look-up, of which there are more than rows."""
    model = Recommender()
    optimizers = [sparse(model.tables.parameters(), 1e-2), dense(model.top.parameters(), 1e-2)]
    for _ in range(4):
        looked_up = torch.randint(0, 40, (6, 120, 8))
        loss = F.binary_cross_entropy_with_logits(model(looked_up), torch.rand(120))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        yield loss.item()


class Ranks(nn.Module):
    """Each query against the documents of all queries, several for each."""

    def __init__(self):
        super().__init__()
        self.words, self.body = nn.Embedding(60, 24), tower(24, 16)

    def forward(self, queries, documents):
        q, d = (F.normalize(self.body(self.words(x)).mean(1), dim=-1) for x in (queries, documents))
        return q @ d.t()


def ranked_documents(each=3):
    """Gradients of the step before are there in every forward pass but the first."""
    model = Ranks()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(6):
        queries, documents = torch.randint(0, 60, (16, 6)), torch.randint(0, 60, (16 * each, 30))
        loss = F.cross_entropy(model(queries, documents) / 0.1, torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class InChunks(torch.autograd.Function):
    """Logits and loss, a chunk at a time, in half precision. Gradients are made on the way
    forward, so that the peak is there.
    """

    @staticmethod
    def forward(ctx, hidden, weight, target):
        for_hidden, for_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        half, total = weight.to(hidden.dtype), hidden.new_zeros((), dtype=torch.float32)
        for at in range(0, len(hidden), 24):
            part = slice(at, at + 24)
            logits = (hidden[part] @ half.t()).float()
            total += F.cross_entropy(logits, target[part], reduction="sum")
            p = logits.softmax(1)
            p[torch.arange(len(p)), target[part]] -= 1
            p = (p / len(hidden)).to(hidden.dtype)
            for_hidden[part] = p @ half
            for_weight += (p.t() @ hidden[part]).float()
        ctx.save_for_backward(for_hidden, for_weight)
        return total / len(hidden)

    @staticmethod
    def backward(ctx, grad):
        for_hidden, for_weight = ctx.saved_tensors
        return for_hidden * grad.to(for_hidden.dtype), for_weight * grad, None


class Chunky(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.body = nn.Embedding(300, 24), tower(24, 24)

    def forward(self, ids, target):
        x = self.body(self.words(ids)).bfloat16()
        return InChunks.apply(x.flatten(0, 1), self.words.weight, target.flatten())


def own_half():
    """Words that are sometimes 0, which might be padding or might not."""
    model = Chunky()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(8):
        ids = torch.randint(1 if step < 5 else 0, 300, (12, 33))
        ids[:5, 3] = 0 if step > 5 else 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.item()


class Edges(nn.Module):
    """A graph network whose weights are much of what it takes."""

    def __init__(self, width=128):
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(6)]
        self.layers, self.out = nn.ModuleList(layers), nn.Linear(width, 4)

    def forward(self, x, edges):
        for layer in self.layers:
            x = torch.tanh(layer(x + x.new_zeros(x.shape).index_add(0, edges[0], x[edges[1]])))
        return self.out(x)


def graph_with_state():
    """Nothing of it can be tried, and the optimizer's state is there from the second step on."""
    model = Edges()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(5):
        x, edges = torch.randn(90, 128), torch.randint(0, 90, (2, 120))
        loss = F.cross_entropy(model(x, edges), torch.randint(0, 4, (90,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Emulator(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.inp, self.out = nn.Conv2d(2, c, 1), nn.Conv2d(c, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.GELU(), nn.Conv2d(c, c, 3, padding=1))
            for _ in range(6)
        )

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return x + 0.1 * self.out(h)


def longer_rollouts():
    """The model is called more often before the backward pass, the further the training is."""
    model = Emulator()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for leads in (1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4):
        state, loss = torch.randn(8, 2, 16, 16), 0.0
        for _ in range(leads):
            state = model(state)
            loss = loss + (state - 0.5).square().mean() / leads
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def late_term():
    """A term of the loss begins after some steps, with a call of its own."""
    model = deep()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(10):
        x = torch.randn(600, 20)
        first = model(x)
        loss = first.square().mean()
        if step >= 5:
            loss = loss + F.mse_loss(model(x + 0.1 * torch.randn_like(x)), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def deep():
    return nn.Sequential(
        nn.Linear(20, 40), *[nn.Sequential(nn.Linear(40, 40), nn.GELU()) for _ in range(7)]
    )


def unfrozen_by_and_by():
    """Layers are trained from some step on only, the last ones first."""
    model = deep()
    model[:-2].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(12):
        if step in (4, 8):
            model[6 - step // 2 :].requires_grad_(True)
            model[0].requires_grad_(step == 8)
        loss = model(torch.randn(600, 20)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


LOOPS = (unet, unrolled, actor_and_critics, ranked_documents)


class Loops(unittest.TestCase):
    def test_through_with_equal_losses(self):
        later = [(id, {**params, "later": True}) for id, params in ASKED]
        for loop, asked, share in [
            *((loop, ASKED, 0.6) for loop in LOOPS),
            (unfrozen_by_and_by, ASKED, 0.65),
            (longer_rollouts, later, 0.65),
            (late_term, later, 0.65),
        ]:
            with self.subTest(loop=loop.__name__):
                plenty = Card()
                whole, _ = run_on(loop, plenty)
                limit = int(share * plenty.most)
                with self.assertRaises(torch.cuda.OutOfMemoryError):
                    run_on(loop, Card(limit))
                got, told = run_on(loop, Card(limit), asked)
                self.assertEqual(len(got), len(whole), told.text())
                self.assertLess(furthest(whole, got), 1e-6, told.text())

    def test_a_work_space_hides_what_a_step_took(self):
        """It may have been all that was taken beyond what was predicted, or nothing of it."""
        for loop, share in ((unet, 0.6), (unrolled, 0.84)):
            plenty = Card()
            whole, _ = run_on(loop, plenty)
            wanted = [spaces.Moment(0.5, 8 * plenty.most, 8 * plenty.most)]
            with mock.patch.object(spaces, "of", return_value=wanted):
                got, told = run_on(loop, Card(int(share * plenty.most)), ASKED)
            self.assertLess(furthest(whole, got), 1e-6, told.text())

    def test_several_rows_for_each_of_the_batch_are_measured(self):
        for each in (2, 3):
            loop = functools.partial(ranked_documents, each)
            plenty = Card()
            whole, _ = run_on(loop, plenty)
            got, told = run_on(loop, Card(int(0.6 * plenty.most)), ASKED)
            self.assertEqual(got, whole, told.text())  # blocks, and no other order of sums
            self.assertNotIn("not even", told.text())

    def test_state_that_comes_after_the_first_step(self):
        plenty = Card()
        whole, _ = run_on(graph_with_state, plenty)
        for share in (0.75, 0.8, 0.85):
            got, told = run_on(graph_with_state, Card(int(share * plenty.most)), ASKED)
            self.assertEqual(got, whole, told.text())
            self.assertIn("waits in host memory", told.text())

    def test_rules_that_hold_in_half_precision_only(self):
        """They are looked at again in a later batch, with the tolerance that they were found by."""
        plenty = Card()
        whole, _ = run_on(own_half, plenty)
        with mock.patch.object(tryout, "narrow_down", wraps=tryout.narrow_down) as again:
            got, told = run_on(own_half, Card(int(0.7 * plenty.most)), ASKED[:1])
        self.assertIs(again.call_args[0][-1], True)  # autocast
        self.assertEqual(len(got), len(whole), told.text())
        self.assertLess(furthest(whole, got), 1e-3, told.text())
        self.assertNotIn("could not be found out", told.text())

    def test_what_is_not_trained_is_made_smaller_too(self):
        for loop in (drawn_image, soft_prompt, seen_by_another):
            with self.subTest(loop=loop.__name__):
                plenty = Card()
                whole, _ = run_on(loop, plenty)
                limit = int(0.65 * plenty.most)
                with self.assertRaises(torch.cuda.OutOfMemoryError):
                    run_on(loop, Card(limit))
                got, told = run_on(loop, Card(limit), ASKED)
                self.assertEqual(len(got), len(whole), told.text())
                self.assertLess(furthest(whole, got), 1e-6, told.text())
                self.assertIn("it is not trained", told.text())

    def test_gradients_of_sparse_tables(self):
        sgd = functools.partial(torch.optim.SGD, momentum=0.0)
        for sparse, summed in ((torch.optim.SparseAdam, True), (sgd, False)):
            loop = functools.partial(sparse_tables, sparse=sparse)
            whole, _ = run_on(loop, Card())
            got, told = run_on(loop, Card(1 << 40), ASKED)
            self.assertLess(furthest(whole, got), 1e-6, told.text())
            self.assertEqual("960 entries of a table summed up to 40" in told.text(), summed)
            self.assertNotIn("does not run on a part", told.text())

    def test_programs_without_modules(self):
        for loop in (plain_tensors, gaussian_process, simulated):
            with self.subTest(loop=loop.__name__):
                plenty = Card()
                whole, _ = run_on(loop, plenty)
                limit = int(0.65 * plenty.most)
                with self.assertRaises(torch.cuda.OutOfMemoryError):
                    run_on(loop, Card(limit))
                got, told = run_on(loop, Card(limit), ASKED)
                self.assertEqual(got, whole, told.text())
                self.assertIn("no module is called", told.text())
        # With a module the hooks are gone again.
        run_on(unet, Card(), ASKED)
        self.assertFalse(torch._C._autograd._top_saved_tensors_default_hooks(True))

    def test_second_derivatives_are_equal_to_the_bit(self):
        for loop in (penalty, learns_to_learn, equation):
            with self.subTest(loop=loop.__name__):
                plenty = Card()
                whole, _ = run_on(loop, plenty)
                limit = int(0.6 * plenty.most)
                with self.assertRaises(torch.cuda.OutOfMemoryError):
                    run_on(loop, Card(limit))
                got, told = run_on(loop, Card(limit), ASKED)
                self.assertEqual(got, whole, told.text())
                self.assertIn("to be differentiated again waits in host memory", told.text())


def stack(tell=lambda: None):
    """Twelve blocks alike, thirty steps. tell: called after each."""
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), nn.LayerNorm(32))
        for _ in range(12)
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(30):
        loss = model(torch.randn(512, 32)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
        tell()


class Cramped(unittest.TestCase):
    """An allocator that gives back all it keeps in every step costs more than another block."""

    def clock(self, card, flush):
        """Seconds of a clock by which each step takes one, and each time that the card gives back
        all it keeps takes flush.
        """
        steps = itertools.count()
        return lambda: next(steps) + flush * card.given_back

    def run_on(self, card, flush=1.0):
        given_back, peaks = [], []

        def tell():
            given_back.append(card.given_back)
            peaks.append(card.most)
            card.start_peak()

        clock = mock.patch.object(unwatched, "time", mock.Mock())
        with inserted(card), remedies(
            ("checkpointing", {"failed": True}), of=[stack]
        ) as told, clock as time:
            time.perf_counter = self.clock(card, flush)
            losses = list(stack(tell))
        return losses, told, given_back, peaks

    def test_leaves_room_to_lay_tensors_out(self):
        plenty = Card()
        with inserted(plenty), remedies(of=[stack]):
            whole = list(stack())
        limit = int(0.7 * plenty.most)
        losses, told, _, peaks = self.run_on(Card(limit))
        self.assertEqual(losses, whole, told.text())
        self.assertEqual(told.kinds("checkpointing").count("applied"), 1, told.text())
        cramped = Card(limit)
        cramped.cramped = int(0.99 * peaks[-1])
        losses, told, given_back, later = self.run_on(cramped)
        self.assertEqual(losses, whole, told.text())
        self.assertEqual(told.kinds("checkpointing").count("applied"), 2, told.text())
        self.assertLess(later[-1], peaks[-1])
        self.assertEqual(given_back[-10], given_back[-1], given_back)
        cramped = Card(limit)
        cramped.cramped = int(0.99 * peaks[-1])
        losses, told, _, later = self.run_on(cramped, flush=0.0)  # it costs nothing here
        self.assertEqual(losses, whole, told.text())
        self.assertEqual(told.kinds("checkpointing").count("applied"), 3, told.text())
        self.assertEqual(later[-1], peaks[-1])

    def test_not_at_any_price(self):
        """Where even the frugal way is cramped, what is done is left as it is after some looks."""
        plenty = Card()
        with inserted(plenty), remedies(of=[stack]):
            list(stack())
        card = Card(int(0.7 * plenty.most))
        card.cramped = 1
        _, told, _, _ = self.run_on(card)
        self.assertLess(told.kinds("checkpointing").count("applied"), 6, told.text())


class Listener(nn.Module):
    """A recurrent layer behind BatchNorm, as in speech."""

    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(4, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU())
        self.layer = nn.GRU(16, 16, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, 5)

    def forward(self, x):
        return self.out(self.layer(self.front(x).transpose(1, 2))[0])


class Recurrent(unittest.TestCase):
    def both(self, layer, x, hx):
        """Results and gradients of a layer as it is and in pieces."""
        found = []
        for count, twice in ((None, False), (4, False), (16, False), (4, True), (16, True)):
            if count:
                recurrent.cut(layer, count, twice)
            given = [t.clone().requires_grad_() for t in (x, *hx)]
            states = given[1:] and (tuple(given[1:]) if len(given) > 2 else given[1])
            out, last = layer(given[0], *([states] if hx else []))
            last = last if isinstance(last, tuple) else (last,)
            total = out.square().sum() + sum(t.sin().sum() for t in last)
            wanted = [*given, *layer.parameters()]
            found.append([out, *last, *torch.autograd.grad(total, wanted)])
        return found

    def test_pieces_give_the_same(self):
        torch.manual_seed(0)
        kinds = (
            (nn.LSTM(5, 6, 2), 2),
            (nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True), 2),
            (nn.GRU(5, 6, batch_first=True), 1),
            (nn.RNN(5, 6, 2), 1),
        )
        for layer, states in kinds:
            layer.double()
            x = torch.randn(7, 9, 5, dtype=torch.double)
            rows = x.size(0 if layer.batch_first else 1)
            deep = layer.num_layers * (2 if layer.bidirectional else 1)
            hx = [torch.randn(deep, rows, 6, dtype=torch.double) for _ in range(states)]
            for given in ([], hx):
                whole, *cut = self.both(layer, x, given)
                for got in cut:
                    for a, b in zip(whole, got):
                        self.assertLess(float((a - b).abs().max()), 1e-12, layer)
            for twice in (False, True):
                recurrent.cut(layer, 16, twice)
                self.check_packed(layer, [x[:n, 1 + n % 3] for n in (4, 7, 2, 7, 1)], hx)

    def check_packed(self, layer, sequences, hx):
        """Of several lengths, in any order."""
        packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
        some = [h[:, : len(sequences)].contiguous() for h in hx]
        original = layer.forward.memroom_stands_for
        for given in ((), (tuple(some) if len(some) > 1 else some[0],)):
            found = []
            for call in (original, layer.forward):
                out, last = call(packed, *given)
                last = last if isinstance(last, tuple) else (last,)
                padded = nn.utils.rnn.pad_packed_sequence(out)[0]
                total = padded.square().sum() + sum(t.sin().sum() for t in last)
                grads = torch.autograd.grad(total, list(layer.parameters()))
                found.append([padded, *last, *grads])
            for a, b in zip(*found):
                self.assertLess(float((a - b).abs().max()), 1e-12, layer)

    def test_a_model_that_cannot_be_cut(self):
        torch.manual_seed(0)
        model, x = Listener(), torch.randn(16, 4, 12)
        whole = model(x).square().mean().item()
        with inserted(Card()) as card, remedies(*ASKED, of="no step") as told:
            card.limit = 0
            g = governor.Governor(told.say, {"micro_batch"})
            self.assertFalse(g.look._cut_recurrent(nn.Linear(2, 2), card))
            cuts = [g.look._cut_recurrent(model, card) for _ in range(3)]
            self.assertEqual(cuts, [True, True, False])
        self.assertIn("its recurrent layer layer works in 16 pieces of the batch", told.text())
        self.assertAlmostEqual(model(x).square().mean().item(), whole, 5)


class Speaks(nn.Module):
    """Returns its loss over many words, in half precision up to there: for few samples gradients of
    weights are more than what the loss needs, for many they are not.
    """

    def __init__(self, words=600, width=24):
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        logits = self.head(x.bfloat16().float()).bfloat16()
        return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten()), logits


class Forecasts(unittest.TestCase):
    def test_a_late_loss_beside_host_memory(self):
        for width, length in ((128, 8), (192, 16)):
            torch.manual_seed(0)
            model, ids = Speaks(width=width), torch.randint(0, 600, (32, length))
            with inserted(Card()) as card:
                cost = measure.cost(model, model, any_inputs((ids,), {}), card, True, True)
                before = card.held()
                card.start_peak()
                with activation_offload.Away(model, (ids,), above=0):
                    out = model(ids)
                torch.autograd.grad(out[0], list(model.parameters()))
            real = card.peak() - before
            told = cost.away_fixed + cost.away_row * len(ids)
            self.assertGreater(told, 0.95 * real)
            self.assertLess(told, 1.5 * real)


class Travels(unittest.TestCase):
    """What is saved comes back as it was, and travels once however many operations save it."""

    def gradients(self, loss, module, x, away=None):
        x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        with away or contextlib.nullcontext():
            out = loss(module, x)
        return torch.autograd.grad(out, [x, *module.parameters()])

    def check(self, loss, x, module=None, times=None):
        module = module or nn.Linear(6, 6)
        whole = self.gradients(loss, module, x)
        with inserted(Card()):
            away = activation_offload.Away(module, (), above=0)
            got = self.gradients(loss, module, x, away)
        for a, b in zip(whole, got):
            self.assertTrue(torch.equal(a, b))
            self.assertEqual(a.stride(), b.stride())
        if times is not None:
            self.assertEqual(away.sent, times * x.numel() * x.element_size())

    def test_one_result_in_several_shapes_travels_once(self):
        x = torch.randn(4, 5, 6)
        # tanh saves its result, and the layer saves the same as one matrix
        self.check(lambda m, x: m(torch.tanh(x)).sum(), x, times=1)
        self.check(lambda m, x: m(torch.tanh(x).transpose(0, 1)).sum(), x)

    def test_what_goes_into_a_checkpointed_part_leaves_the_card(self):
        """However it is handed over, nothing but the graph holds it, and the graph has sent it."""
        pair = collections.namedtuple("pair", "x y")
        fields = dataclasses.make_dataclass("fields", ["x"])
        frozen = dataclasses.make_dataclass(
            "frozen", ["x"], frozen=True, namespace={"__slots__": ("x",)}
        )  # it cannot be copied
        ways = (
            lambda x: ((x,), {}),
            lambda x: ((), {"x": x}),
            lambda x: ((pair(x, 1),), {}),
            lambda x: ((fields(x),), {}),
            lambda x: ((frozen(x),), {}),
            lambda x: (([{"x": x}, None],), {}),
            lambda x: ((fields({"x": [x]}),), {"more": (1, 2)}),
        )

        def run(part, *args, **kwargs):
            found = [t for t in tree.flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
            return part(found[0]).tanh()

        for i, way in enumerate(ways):
            layers, card = nn.ModuleList(nn.Linear(40, 40) for _ in range(6)), Card()
            out = x = torch.randn(600, 40)
            with self.subTest(i), inserted(card):
                with activation_offload.Away(layers, (x,), above=0):
                    for layer in layers:
                        call = functools.partial(run, layer)
                        out = checkpointing.checkpointed(call, way(out), [layer])
                self.assertLess(card.held(), 3 * out.nbytes)  # of seven, and the weights
                out.sum().backward()
                self.assertIsNotNone(layers[0].weight.grad)

    def test_layouts(self):
        conv = nn.Conv2d(6, 6, 3)
        x = torch.randn(2, 6, 8, 8)
        last = x.to(memory_format=torch.channels_last)
        for image in (x, last, x[:, :, ::2], x[:1].expand(2, 6, 8, 8), x.transpose(2, 3)):
            self.check(lambda m, x: m(torch.sigmoid(x)).square().sum(), image, conv)
            self.check(lambda m, x: (m(x) * m(x.sin()[..., :])).sum(), image, conv)

    def test_what_repeats_itself_travels_once(self):
        """An index of edges for each channel of a message, as scatter wants it."""
        index = torch.randint(0, 7, (400,))[:, None].expand(400, 64)
        x = torch.randn(400, 64, requires_grad=True)

        def loss(away=None):
            with away or contextlib.nullcontext():
                out = torch.zeros(7, 64).scatter_add(0, index, x.sin()).square().sum()
            return torch.autograd.grad(out, x)[0]

        whole, card = loss(), Card()
        with inserted(card):
            away = activation_offload.Away(nn.Linear(1, 1), (), above=0)
            got = loss(away)
        self.assertTrue(torch.equal(whole, got))
        self.assertLess(away.sent, 2 * x.numel() * x.element_size())  # the index is 8 bytes each
        for shape in ((4, 1, 6), (1, 5, 1), (4, 5, 6)):
            once = torch.randn(shape)
            self.check(lambda m, x: (x.expand(4, 5, 6).exp() * m(x.expand(4, 5, 6))).sum(), once)

    def test_what_is_changed_in_between_is_not_taken_for_what_was_saved(self):
        def changed(m, x):
            y = x * 2
            a = y.sin()  # saves y
            y = y.clone()
            y.mul_(3)
            return (a + m(y).square()).sum()

        self.check(changed, torch.randn(4, 5, 6))


if __name__ == "__main__":
    unittest.main()
