"""Micro-batching keeps the loss trajectory: over optimizers, schedules, clipping, uneven batches
and kinds of loss.
"""

import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from training import PIECES, furthest, parameters_apart, remedies, sgd, train


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))


def points(sizes=(16, 16, 13, 7, 1, 16)):
    torch.manual_seed(2)
    return [(torch.randn(n, 8), torch.randint(0, 3, (n,))) for n in sizes]


def classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class TinyGPT(nn.Module):
    """Returns (logits, loss) as nanoGPT does, with labels of -1 ignored."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed, self.head, self.drop = (
            nn.Embedding(20, 16),
            nn.Linear(16, 20),
            nn.Dropout(dropout),
        )

    def forward(self, x, y=None):
        logits = self.head(self.drop(self.embed(x)))
        return logits, None if y is None else F.cross_entropy(
            logits.flatten(0, 1), y.flatten(), ignore_index=-1
        )


def sentences(sizes=(16, 16, 13, 7, 16), ragged=True):
    torch.manual_seed(3)
    batches = []
    for n in sizes:
        x, y = torch.randint(0, 20, (n, 6)), torch.randint(0, 20, (n, 6))
        for i in range(n if ragged else 0):
            y[i, : (i * 5) % 6] = -1
        batches.append((x, y))
    return batches


class SameTrajectory(unittest.TestCase):
    def same(
        self,
        model,
        step,
        batches,
        optimizer=sgd,
        asked=PIECES,
        after=None,
        losses=2e-6,
        weights=1e-5,
    ):
        whole, a, _ = train(model, step, batches, optimizer, (), after)
        pieces, b, told = train(model, step, batches, optimizer, asked, after)
        self.assertNotIn("declined", [kind for kind, _, _ in told], told.text())
        self.assertLess(furthest(whole, pieces), losses)
        self.assertLess(parameters_apart(a, b), weights)
        return told

    def test_optimizers(self):
        makers = {
            "sgd": sgd,
            "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
            "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
            "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
            "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3),
        }
        for name, maker in makers.items():
            for kind, model, step, batches in (
                ("outside", mlp(), classify, points()),
                ("inside", TinyGPT(), lambda m, b: m(*b)[1], sentences()),
            ):
                with self.subTest(optimizer=name, loss=kind):
                    # The first steps of Adam and its kin divide by gradients near zero: rounding
                    # shows in single weights.
                    self.same(
                        model,
                        step,
                        batches,
                        maker,
                        losses=2e-5,
                        weights=2e-3 if name not in ("sgd", "momentum") else 1e-5,
                    )

    def test_schedule_and_clipping(self):
        def after(model, optimizer):
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            for group in optimizer.param_groups:
                group["lr"] *= 0.7

        self.same(mlp(), classify, points(), after=after)

    def test_weights_of_a_returned_loss(self):
        """Uneven pieces, labels that are ignored: a plain mean of the pieces' losses would be off
        by percents.
        """
        self.same(TinyGPT(), lambda m, b: m(*b)[1], sentences())
        self.same(TinyGPT(), lambda m, b: m(*b)[1], sentences(ragged=False))
        # The first batches leave open whether ignored labels count; the rule is found out when it
        # begins to matter.
        self.same(TinyGPT(), lambda m, b: m(*b)[1], sentences(ragged=False)[:2] + sentences()[2:])

    def test_means_over_what_only_the_model_knows(self):
        """Its padding is a number of its own, or its weights come beside the batch; the first batch
        shows neither.
        """

        class Own(nn.Module):
            def __init__(self, gap):
                super().__init__()
                self.words, self.head, self.gap = nn.Embedding(30, 16), nn.Linear(16, 30), gap

            def forward(self, ids, worth=None):
                told = self.head(self.words(ids[:, :-1])).log_softmax(-1)
                told = told.gather(-1, ids[:, 1:, None]).squeeze(-1)
                counts = (ids[:, 1:] != self.gap).float()
                counts = counts if worth is None else counts * worth[:, None]
                return -(told * counts).sum() / counts.sum()

        torch.manual_seed(4)
        for gap, left in ((3, False), (0, False), (29, True)):
            full = [torch.randint(4, 29, (24, 12)) for _ in range(5)]
            sizes = torch.randint(2, 12, (5, 24))
            for ids, size in zip(full[1:], sizes):
                beyond = torch.arange(12) >= size[:, None]
                ids.masked_fill_(beyond.flip(1) if left else beyond, gap)
            self.same(Own(gap), lambda m, ids: m(ids), full)
        weighed = [(torch.randint(4, 29, (24, 12)), torch.ones(24)) for _ in range(4)]
        for _, worth in weighed[1:]:
            worth.uniform_(0.1, 4)
        self.same(Own(3), lambda m, b: m(*b), weighed)

    def test_weights_when_rows_lose_almost_the_same(self):
        """An untrained model: rows differ in the fourth digit, and the right rule is still
        found.
        """
        torch.manual_seed(0)
        model = TinyGPT()
        with torch.no_grad():
            model.head.weight.mul_(1e-3)
            model.head.bias.zero_()
        told = self.same(model, lambda m, b: m(*b)[1], sentences())
        self.assertEqual(set(told.kinds("micro_batch")), {"applied"}, told.text())

    def test_lists_beside_the_batch(self):
        """Lengths and texts come as lists, with an item for each sample."""

        class Reader(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.embed, self.head = nn.EmbeddingBag(64, 16, mode="mean"), nn.Linear(24, 3)

            def forward(self, x, lengths, texts):
                there = torch.arange(x.shape[1])[None] < torch.tensor(lengths)[:, None]
                words = torch.tensor([[ord(c) % 64 for c in text] for text in texts])
                mean = (x * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
                return self.head(torch.cat([self.embed(words), mean.expand(-1, 8)], 1))

        batches = []
        for x, y in points((16, 13, 7)):
            lengths = [1 + i % 8 for i in range(len(x))]
            batches.append((x, lengths, ["%03d" % (7 * i) for i in range(len(x))], y))

        def step(model, batch):
            return F.cross_entropy(model(*batch[:3]), batch[3])

        told = self.same(Reader(), step, batches)
        self.assertIn("micro-batches", told.text())

    def test_sum_loss(self):
        class Summed(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 3)

            def forward(self, x, y):
                return {"loss": F.cross_entropy(self.linear(x), y, reduction="sum"), "count": 3}

        self.same(Summed(), lambda m, b: m(*b)["loss"] * 0.01, points())

    def test_loss_and_logits_used(self):
        """Gradients that arrive at the logits beside those of the loss are not lost."""

        def step(model, batch):
            logits, loss = model(*batch)
            return loss + 0.1 * logits.pow(2).mean()

        self.same(TinyGPT(), step, sentences())

    def test_backward_twice(self):
        def step(model, batch):
            loss = model(*batch)[1]
            loss.backward(retain_graph=True)
            return loss * 0.5

        self.same(TinyGPT(), step, sentences())

    def test_gradients_of_gradients_of_a_returned_loss(self):
        def step(model, batch):
            loss = model(*batch)[1]
            slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            return loss + sum(s.pow(2).sum() for s in slopes)

        self.same(TinyGPT(), step, sentences())

    def test_autocast_around_the_loop(self):
        def step(model, batch):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(*batch)[1]

        self.same(TinyGPT(), step, sentences(), losses=2e-3, weights=2e-3)

    def test_gradient_hooks_see_whole_gradients(self):
        seen = []

        def step(model, batch):
            model.head.weight.register_hook(lambda g: seen.append(float(g.norm())))
            return model(*batch)[1]

        batches, model = sentences()[:1], TinyGPT()
        train(model, step, batches, sgd)
        self.same(model, step, batches)
        whole, again, pieces = seen
        self.assertAlmostEqual(whole, again, 6)
        self.assertAlmostEqual(whole, pieces, 5)

    def test_recurrent_states(self):
        class Net(nn.Module):
            def __init__(self, batch_first):
                super().__init__()
                self.rnn = nn.GRU(8, 12, batch_first=batch_first)

            def forward(self, x, h=None):
                if not (x.is_contiguous() and (h is None or h.is_contiguous())):
                    raise RuntimeError("rnn: hx is not contiguous")  # as cuDNN has it
                return self.rnn(x, h)

        for batch_first in (True, False):
            torch.manual_seed(0)
            net = Net(batch_first)
            batches = [
                torch.randn(*((n, 5, 8) if batch_first else (5, n, 8))) for n in (16, 13, 16)
            ]

            def step(m, x):
                out, h = m(x)
                out, h = m(x, h.detach())
                return out.pow(2).mean() + 0.01 * h.sum()

            with self.subTest(batch_first=batch_first):
                self.same(net, step, batches)

    def test_several_modules_and_double_backward(self):
        """A GAN with gradient penalty: two optimizers, a module called on another's output,
        create_graph.
        """

        def run(asked):
            torch.manual_seed(0)
            g, d = (
                nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6)),
                nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)),
            )
            og, od = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
            trail = []
            with remedies(*asked, of=["a GAN"]) as told:
                for _ in range(4):
                    real, z = torch.randn(16, 6), torch.randn(16, 4)
                    od.zero_grad()
                    fake = g(z)
                    mixed = (real + fake.detach()).mul(0.5).requires_grad_()
                    (slope,) = torch.autograd.grad(d(mixed).sum(), mixed, create_graph=True)
                    loss_d = (
                        d(fake.detach()).mean()
                        - d(real).mean()
                        + 10 * (slope.norm(dim=1) - 1).pow(2).mean()
                    )
                    loss_d.backward()
                    od.step()
                    og.zero_grad()
                    loss_g = -d(fake).mean()
                    loss_g.backward()
                    og.step()
                    trail += [loss_d.item(), loss_g.item()]
            return trail, told

        whole, _ = run(())
        pieces, told = run(PIECES)
        self.assertLess(furthest(whole, pieces), 1e-5, told.text())

    def test_custom_autograd(self):
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx, grad):
                return grad * 3 * ctx.saved_tensors[0] ** 2

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 3)

            def forward(self, x):
                return Cube.apply(self.linear(x))

        self.same(Net(), classify, points())

    def test_compiled(self):
        model = mlp()

        def step(m, batch):
            if not hasattr(m, "compiled_by_test"):
                object.__setattr__(m, "compiled_by_test", torch.compile(m, backend="aot_eager"))
            return classify(m.compiled_by_test, batch)

        self.same(model, step, points((16, 16, 12)))

    def test_evaluation_is_cut_too(self):
        for mode in (torch.no_grad, torch.inference_mode):
            with self.subTest(mode.__name__):
                model, rows = mlp(), []
                with remedies(("micro_batch", {"size": 5}), of="no step"), mode():
                    model[0].register_buffer("unused", torch.zeros(1))
                    inner = model[0].forward
                    model[0].forward = lambda x: (rows.append(len(x)), inner(x))[1]
                    x = torch.randn(16, 8)
                    out = model(x)
                    self.assertEqual(rows[-4:], [4, 4, 4, 4])
                with torch.no_grad():
                    self.assertLess(float((out - model(x)).abs().max()), 1e-6)

    def test_dropout_is_as_expected(self):
        """The masks differ, so only the mean over seeds can agree: within two standard errors. And
        recomputation uses the masks of the forward pass, or gradients would be those of another
        function.
        """
        model, batches = TinyGPT(0.3), sentences()
        gaps = []
        for seed in range(12):
            whole, _, _ = train(model, lambda m, b: m(*b)[1], batches, sgd, seed=seed)
            pieces, _, told = train(
                model, lambda m, b: m(*b)[1], batches, sgd, PIECES, seed=100 + seed
            )
            gaps.append(sum(pieces) / len(pieces) - sum(whole) / len(whole))
        gaps = torch.tensor(gaps)
        self.assertLess(abs(float(gaps.mean())), 2.5 * float(gaps.std()) / len(gaps) ** 0.5)

    def test_masks_of_forward_and_recompute_agree(self):
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1, bias=False))
        x = torch.randn(16, 8)
        with remedies(*PIECES, of="no step"):
            torch.manual_seed(5)
            out = model(x)
            out.sum().backward()
        # d out / d last.weight is the sum of the dropped hidden rows, so weight . grad must give
        # back the output's sum.
        self.assertAlmostEqual(
            float((model[2].weight * model[2].weight.grad).sum()), float(out.sum()), 3
        )

    def test_loss_scaling(self):
        """A scaled loss, a skipped step and a changed scale: what GradScaler does, written out for
        the CPU.
        """

        def run(asked):
            model = TinyGPT()
            torch.manual_seed(0)
            for p in model.parameters():
                nn.init.normal_(p, 0, 0.3)
            opt, scale, trail = torch.optim.SGD(model.parameters(), 0.1), 65536.0, []
            with remedies(*asked, of=["scaled losses"]):
                for step, batch in enumerate(sentences()):
                    opt.zero_grad()
                    loss = model(*batch)[1]
                    (loss * scale).backward()
                    for p in model.parameters():
                        p.grad /= scale
                    if step == 1:
                        scale /= 2  # as after an overflow: the step is left out
                    else:
                        opt.step()
                    trail.append(loss.item())
            return trail

        self.assertLess(furthest(run(()), run(PIECES)), 2e-6)

    def test_user_accumulation(self):
        def step(model, batch):
            first = model(*batch)[1] / 2
            first.backward()
            return model(*batch)[1] / 2

        self.same(TinyGPT(), step, sentences())


class NothingCounts(unittest.TestCase):
    """Rows without a label that counts: alone their loss is 0 / 0, in the batch they weigh
    nothing.
    """

    def test_both_ways(self):
        class MaskedMean(nn.Module):
            def __init__(self, inside):
                super().__init__()
                self.body, self.inside = nn.Linear(8, 5), inside

            def forward(self, x, labels):
                logits = self.body(x)
                if self.inside == "mean":
                    mask = (labels != -100).float()
                    each = F.cross_entropy(
                        logits.transpose(1, 2), labels, reduction="none", ignore_index=-100
                    )
                    return (each * mask).sum() / mask.sum(), logits
                return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits

        batches = []
        for step in range(3):
            torch.manual_seed(step)
            labels = torch.randint(0, 5, (8, 6))
            labels[2 + step], labels[5, 1:] = -100, -100
            batches.append((torch.randn(8, 6, 8), labels))
        for inside in ("mean", "cross entropy"):
            for step in (
                lambda m, b: m(*b)[0],
                lambda m, b: m(*b)[0] + 0.1 * m(*b)[1].pow(2).mean(),
            ):
                torch.manual_seed(0)
                model = MaskedMean(inside)
                whole, a, _ = train(model, step, batches, sgd)
                for size in (1, 3):
                    pieces, b, told = train(
                        model, step, batches, sgd, [("micro_batch", {"size": size})]
                    )
                    self.assertIn("applied", told.kinds("micro_batch"), told.text())
                    self.assertLess(furthest(whole, pieces), 1e-6)
                    self.assertLess(parameters_apart(a, b), 1e-6)


class Draws(unittest.TestCase):
    """Random numbers: the same for all rows, as in layer drop, or for each element, as in
    dropout.
    """

    class SkipsLayers(nn.Module):
        def __init__(self, dropout):
            super().__init__()
            self.layers, self.out, self.dropout = (
                nn.ModuleList([nn.Linear(8, 8) for _ in range(6)]),
                nn.Linear(8, 3),
                nn.Dropout(dropout),
            )

        def forward(self, x, labels=None):
            for layer in self.layers:
                if torch.rand([]) > 0.4:
                    x = x + self.dropout(layer(x).tanh())
            logits = self.out(x)
            return logits if labels is None else (F.cross_entropy(logits, labels), logits)

    def after(self, dropout, step, asked=()):
        torch.manual_seed(0)
        model = self.SkipsLayers(dropout)
        batches = [(torch.randn(8, 8), torch.randint(0, 3, (8,))) for _ in range(4)]
        losses, _, told = train(model, step, batches, sgd, asked)
        return losses, torch.rand([]).item(), told

    def test_layers_skipped(self):
        """Pieces skip the same layers, and what is drawn afterwards (the next epoch's order) is the
        same.
        """
        for step in (lambda m, b: F.cross_entropy(m(b[0]), b[1]), lambda m, b: m(*b)[0]):
            whole, next_whole, _ = self.after(0.0, step)
            pieces, next_pieces, told = self.after(0.0, step, PIECES)
            self.assertLess(furthest(whole, pieces), 1e-6)
            self.assertEqual(next_whole, next_pieces)
            self.assertEqual([f["equivalence"] for k, _, f in told if k == "applied"], ["exact"])

    def test_dropout_is_expected(self):
        _, _, told = self.after(0.5, lambda m, b: m(*b)[0], PIECES)
        self.assertEqual([f["equivalence"] for k, _, f in told if k == "applied"], ["expected"])


class ClassToken(nn.Module):
    """With one row the gradient of the class token is a view of that of the positions, and that of
    the shift one number.
    """

    def __init__(self):
        super().__init__()
        self.token, self.positions, self.shift = (
            nn.Parameter(torch.zeros(1, 1, 8)),
            nn.Parameter(torch.zeros(1, 4, 8)),
            nn.Parameter(torch.zeros(8)),
        )
        self.out = nn.Linear(8, 3)

    def forward(self, x, y):
        h = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        loss = F.cross_entropy(self.out(h.tanh().mean(1)), y)
        return loss + 0.1 * self.shift.sum(), h


class Aliases(unittest.TestCase):
    def test_gradients_that_share_memory(self):
        torch.manual_seed(0)
        model = ClassToken()
        batches = [(torch.randn(6, 3, 8), torch.randint(0, 3, (6,))) for _ in range(3)]
        whole, a, _ = train(model, lambda m, b: m(*b)[0], batches, sgd)
        for size in (1, 2, 4):
            pieces, b, told = train(
                model, lambda m, b: m(*b)[0], batches, sgd, [("micro_batch", {"size": size})]
            )
            self.assertIn("applied", told.kinds("micro_batch"))
            self.assertLess(furthest(whole, pieces), 1e-6, size)
            self.assertLess(parameters_apart(a, b), 1e-6)


if __name__ == "__main__":
    unittest.main()
