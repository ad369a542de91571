"""The other remedies: what they save is really not there, what they compute is the same."""

import itertools
import re
import types
import unittest
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit import registry
from _memroom_probe.fit.remedies import (
    activation_offload,
    chunked_loss,
    optimizer_offload,
    optimizer_step,
)
from test_governor import classify, deep, points
from training import Told, furthest, parameters_apart, remedies, sgd, sow, train


class SavedActivations(unittest.TestCase):
    def test_same_gradients(self):
        model = deep()
        whole, a, _ = train(model, classify, points(), sgd)
        away, b, told = train(
            model, classify, points(), sgd, [("activation_offload", {"above": 1024})]
        )
        self.assertIn("applied", told.kinds("activation_offload"))
        self.assertEqual(whole, away)
        self.assertEqual(parameters_apart(a, b), 0)

    def test_copies_are_made_above_the_size_only(self):
        if torch.cuda.is_available():
            self.skipTest("on a machine with a card, tensors of the host stay where they are")
        given = torch.zeros(1500)
        away = activation_offload.Away(torch.nn.Linear(1, 1), [given], quota=10000, above=1000)
        small, large, more = torch.zeros(10), torch.zeros(1000), torch.zeros(2000)
        self.assertEqual(away.pack(given[500:]).data_ptr(), given[500:].data_ptr())
        self.assertEqual(away.pack(small).data_ptr(), small.data_ptr())
        sent = away.pack(large).sent
        self.assertNotEqual(sent.there.data_ptr(), large.data_ptr())
        self.assertIs(away.pack(large).sent, sent)  # saved by two operations, sent once
        self.assertIs(away.pack(large.view(10, 100)).sent, sent)
        large.add_(1)
        self.assertIsNot(away.pack(large).sent, sent)
        last, beyond = away.pack(more).sent, torch.zeros(1001)
        self.assertNotEqual(last.there.data_ptr(), more.data_ptr())  # it reaches the quota
        self.assertEqual(away.pack(beyond).data_ptr(), beyond.data_ptr())
        self.assertIs(away.pack(more).sent, last)

    def test_results_that_are_still_there(self):
        """Log-probabilities that the loop holds do not come back as a second copy. What was changed
        or dropped meanwhile does.
        """
        if torch.cuda.is_available():
            self.skipTest("on a machine with a card, tensors of the host stay where they are")

        def gradient(keep, change=False):
            torch.manual_seed(0)
            model, x = nn.Sequential(nn.Linear(6, 40), nn.LogSoftmax(-1)), torch.randn(5, 6)
            away = activation_offload.Away(model, [x], above=0)
            copies, original = [], activation_offload._Sent.back
            activation_offload._Sent.back = lambda s: copies.append(s.there.shape) or original(s)
            try:
                with away:
                    out = model(x)
                away.gave(out)
                loss = F.nll_loss(out * 2, torch.tensor([0, 1, 2, 3, 4]))
                if change:
                    with torch.no_grad():
                        out.data.add_(0)
                        out.add_(1)
                if not keep:
                    out = None
                loss.backward()
            finally:
                activation_offload._Sent.back = original
            return model[0].weight.grad, copies

        usual, copies = gradient(keep=True)
        self.assertNotIn((5, 40), copies)
        for keep, change in ((True, True), (False, False)):
            got, copies = gradient(keep, change)
            self.assertTrue(torch.equal(usual, got))
            self.assertIn((5, 40), copies)


class SlicedOptimizer(unittest.TestCase):
    def test_each(self):
        """The same numbers to the last bit, and param_groups as they were."""
        kinds = [
            torch.optim.AdamW,
            torch.optim.Adam,
            torch.optim.RMSprop,
            torch.optim.NAdam,
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        ]
        for make in kinds:
            model, told, groups = deep(), Told(), []
            optimizer = lambda p: make([{"params": list(p), "foreach": True}])
            whole, a, _ = train(model, classify, points(), optimizer)
            hooks = optimizer_step.sliced_optimizer({"bytes": 20000}, told.say)
            sliced, b, _ = train(
                model,
                classify,
                points(),
                optimizer,
                after=lambda m, o: groups.append(len(o.param_groups)),
            )
            for hook in hooks:
                hook.remove()
            self.assertEqual(whole, sliced)
            self.assertEqual(parameters_apart(a, b), 0)
            self.assertEqual(set(groups), {1})
            self.assertIn("slices", told.text())


class StateAway(unittest.TestCase):
    def setUp(self):
        self.part = optimizer_offload.PART
        optimizer_offload.PART = 5000  # bytes: several parts of these small models

    def tearDown(self):
        optimizer_offload.PART = self.part

    def away(self, told, wanted=None):
        one = optimizer_offload.StateAway(told.say, wanted)
        for hook in one.hooks:
            self.addCleanup(hook.remove)
        return one

    def test_part_by_part(self):
        """The same numbers to the last bit, param_groups as they were, hooks called once a step."""
        kinds = [
            torch.optim.AdamW,
            lambda p: torch.optim.SGD([{"params": [q]} for q in p], 0.1, momentum=0.9),
            lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
        ]
        for slices in (False, True):
            for make in kinds:
                model, told, groups, calls = deep(), Told(), [], []

                def counted(p, make=make, calls=calls):
                    optimizer = make(p)
                    optimizer.register_step_post_hook(lambda *_: calls.append(1))
                    return optimizer

                whole, a, _ = train(model, classify, points(), counted)
                steps = len(calls)
                more = optimizer_step.sliced_optimizer({"bytes": 9000}, told.say) if slices else []
                hooks = self.away(told).send_now()
                got, b, _ = train(
                    model,
                    classify,
                    points(),
                    counted,
                    after=lambda m, o, groups=groups: groups.append(len(o.param_groups)),
                )
                for hook in list(hooks) + list(more):
                    hook.remove()
                self.assertEqual(whole, got)
                self.assertEqual(parameters_apart(a, b), 0)
                self.assertEqual(len(calls), 2 * steps)
                self.assertEqual(len(set(groups)), 1)
                self.assertIn("offloaded", told.text())

    def test_somebody_passes_on_that_there_is_no_closure(self):
        """As accelerate does for every optimizer that it wraps."""
        model = deep()
        optimizer, given = torch.optim.AdamW(model.parameters()), lambda: 0.0
        for args, kwargs, apart in (
            ((optimizer,), {}, True),
            ((optimizer, None), {}, True),
            ((optimizer,), {"closure": None}, True),
            ((optimizer, given), {}, False),
            ((optimizer,), {"closure": given}, False),
        ):
            self.assertEqual(len(optimizer_offload._parts(optimizer, args, kwargs)) > 1, apart)
        self.assertTrue(optimizer_offload.steps_apart(optimizer))
        self.assertFalse(optimizer_offload.steps_apart(torch.optim.LBFGS(model.parameters())))

    def test_what_a_checkpoint_brings_goes_too(self):
        """A loop that saves and resumes would have all of its state on the card once."""
        model = deep()
        optimizer = torch.optim.AdamW(model.parameters())
        self.away(Told()).send_now()
        sent: list = []
        with mock.patch.object(optimizer_offload, "_to_host", lambda p, t: sent.append(t) or t):
            for _ in range(2):
                classify(model, points()[0]).backward()
                optimizer.step()
            saved = optimizer.state_dict()
            sent.clear()
            optimizer.load_state_dict(saved)
        moments = [t for s in optimizer.state.values() for t in s.values() if t.numel() >= 1024]
        self.assertEqual(len(sent), len(moments))
        self.assertTrue(moments)

    def test_sparse_tables(self):
        """State of tables is made and used table by table, once it is seen not to fit."""

        def run(away):
            torch.manual_seed(0)
            tables = [nn.EmbeddingBag(60, 16, sparse=True) for _ in range(5)]
            weights = [t.weight for t in tables]
            optimizer, seen = torch.optim.SparseAdam(weights, 1e-2), []
            asked: list = []
            if away:
                self.away(Told(), lambda o: asked.append(o) or True)
                original = optimizer_offload._parts
                try:
                    optimizer_offload._parts = lambda *a: seen.append(original(*a)) or seen[-1]
                    self._steps(tables, optimizer)
                finally:
                    optimizer_offload._parts = original
                # remedies of other tests may still listen
                self.assertEqual([len(parts) for parts in seen if len(parts) > 1], [5] * 3)
                self.assertEqual(len(asked), 1)
            else:
                self._steps(tables, optimizer)
            return torch.stack([w.detach() for w in weights])

        self.assertTrue(torch.equal(run(False), run(True)))

    @staticmethod
    def _steps(tables, optimizer):
        for step in range(3):
            rows = torch.arange(8).reshape(4, 2) + 3 * step
            sum(t(rows).square().sum() for t in tables).backward()
            optimizer.step()
            optimizer.zero_grad()


class FusedOptimizer(unittest.TestCase):
    def test_parameters_that_can_be_read_once(self):
        """Groups of `module.parameters()` are looked at before the optimizer gets them: none may
        arrive empty.
        """
        optimizers = (
            (lambda p: torch.optim.AdamW(p, lr=0.1)),
            (lambda p: torch.optim.AdamW([{"params": (q for q in p)}], lr=0.1)),
        )
        model = deep()
        before = [
            train(model, classify, points(), optimizer) for optimizer in optimizers
        ]  # the remedy stays once it is there
        for optimizer, (whole, a, _) in zip(optimizers, before):
            fused, b, _ = train(model, classify, points(), optimizer, [("optimizer_fused", {})])
            self.assertEqual(whole, fused)
            self.assertEqual(parameters_apart(a, b), 0)


class Precision(unittest.TestCase):
    def test_autocast(self):
        model = deep()
        whole, _, _ = train(model, classify, points(), sgd)
        half, trained, told = train(
            model, classify, points(), sgd, [("mixed_precision", {"dtype": "bf16"})]
        )
        self.assertIn("applied", told.kinds("mixed_precision"))
        self.assertTrue(0 < furthest(whole, half) < 2e-2)
        self.assertEqual({p.dtype for p in trained.parameters()}, {torch.float32})
        with remedies(("mixed_precision", {}), of="no step"):
            self.assertEqual(model(points()[0][0]).dtype, torch.float32)

    def test_with_pieces(self):
        model = deep()
        half, _, _ = train(model, classify, points(), sgd, [("mixed_precision", {})])
        both, _, told = train(
            model,
            classify,
            points(),
            sgd,
            [("mixed_precision", {}), ("micro_batch", {"pieces": 4})],
        )
        self.assertNotIn("declined", told.text())
        self.assertLess(furthest(half, both), 1e-2)

    def test_already_on(self):
        def step(m, b):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return classify(m, b)

        _, _, told = train(deep(), step, points(), sgd, [("mixed_precision", {})])
        self.assertEqual(told.kinds("mixed_precision"), ["declined"])

    def test_fp16_scaling(self):
        """Gradients too small for fp16 survive, the loop sees them unscaled, an overflow skips the
        step.
        """
        model = nn.Linear(4, 1, bias=False)
        original = torch.optim.Optimizer.__init__
        try:
            with remedies(("mixed_precision", {"dtype": "fp16"}), of="gradients by hand"):
                optimizer = torch.optim.SGD(model.parameters(), 1.0)
                (model(torch.ones(1, 4)).sum() * 1e-7).backward()
                self.assertAlmostEqual(float(model.weight.grad[0, 0]) / 1e-7, 1.0, 1)
                before = model.weight.detach().clone()
                model.weight.grad.fill_(float("inf"))
                optimizer.step()
                self.assertTrue(torch.equal(before, model.weight))
                model.weight.grad.fill_(1.0)
                optimizer.step()
                self.assertFalse(torch.equal(before, model.weight))
        finally:
            torch.optim.Optimizer.__init__ = original


def _as_on_a_card(input, target, *how, **named):
    """Cross entropy that widens its log-probabilities, and not the logits."""
    mixed = torch.is_autocast_cpu_enabled() or torch.is_autocast_enabled()
    with torch.autocast(input.device.type, enabled=False):
        log = F.log_softmax(input, 1)
        return F.nll_loss(log.float() if mixed else log, target)


class ChunkedLoss(unittest.TestCase):
    def test_values_and_gradients(self):
        original, divergence = F.cross_entropy, F.kl_div
        torch.manual_seed(0)
        logits, target = torch.randn(50, 37), torch.randint(0, 37, (50,))
        target[::7] = -100
        try:
            chunked_loss.install({"above": 0}, lambda *a, **k: None)
            chunked_loss.PIECE = 4 * 37 * 8
            for reduction in ("mean", "sum"):
                a, b = logits.clone().requires_grad_(), logits.clone().requires_grad_()
                x, y = (
                    original(a, target, reduction=reduction),
                    nn.CrossEntropyLoss(reduction=reduction)(b, target),
                )
                (x * 3).backward()
                (y * 3).backward()
                self.assertEqual(type(y.grad_fn).__name__, "_CrossEntropyBackward")
                self.assertLess(abs(x.item() - y.item()) / abs(x.item()), 1e-6)
                self.assertLess(float((a.grad - b.grad).abs().max()), 1e-6)
            soft = F.cross_entropy(logits, target, label_smoothing=0.1)
            self.assertEqual(soft, original(logits, target, label_smoothing=0.1))
        finally:
            F.cross_entropy, F.kl_div, chunked_loss.PIECE = original, divergence, 32 << 20

    def test_from_fewer_bytes_on_where_a_card_has_few(self):
        for limit, asked, least in (
            (1 << 30, None, 64 << 20),
            (1 << 36, None, 128 << 20),
            (1, 9, 9),
        ):
            chunked_loss._least.cache_clear()
            around = types.SimpleNamespace(limit=limit)
            with mock.patch.object(chunked_loss.room, "of", lambda device: around):
                self.assertEqual(chunked_loss._least(torch.device("cuda", 0), asked), least)

    def test_gradients_are_equal_to_the_bit_in_every_precision(self):
        """Under autocast a card rounds log-probabilities to half precision, and a CPU does not.
        What a card does is done here by hand; where there is one, it is tried too.
        """
        devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
        for usual in (F.cross_entropy, _as_on_a_card):
            self.equal_to_the_bit(usual, devices)

    def equal_to_the_bit(self, original, devices):
        before, divergence = F.cross_entropy, F.kl_div
        types = torch.float32, torch.bfloat16, torch.float16
        try:
            chunked_loss._logs.clear()
            F.cross_entropy = original
            chunked_loss.install({"above": 0}, lambda *a, **k: None)
            chunked_loss.PIECE = 4 * 4099 * 8
            for device, dtype, mixed in itertools.product(devices, types, (False, True)):
                torch.manual_seed(0)
                logits = torch.randn(50, 4099, device=device).to(dtype)
                target = torch.randint(0, 4099, (50,), device=device)
                target[::7] = -100
                gradients = []
                for loss in (original, F.cross_entropy):
                    x = logits.clone().requires_grad_()
                    half = dtype if dtype != torch.float32 else torch.bfloat16
                    with torch.autocast(device, half, enabled=mixed):
                        y = loss(x, target)
                    (y.float() * 512).backward()
                    gradients.append(x.grad)
                self.assertEqual(type(y.grad_fn).__name__, "_CrossEntropyBackward")
                self.assertTrue(torch.equal(*gradients), (device, dtype, mixed))
        finally:
            chunked_loss._logs.clear()
            F.cross_entropy, F.kl_div, chunked_loss.PIECE = before, divergence, 32 << 20

    def test_divergence_is_equal_to_the_bit_in_its_gradient(self):
        original, usual = F.cross_entropy, F.kl_div
        torch.manual_seed(0)
        said = torch.randn(6, 9, 37).log_softmax(-1)
        taught = torch.randn(6, 9, 37).softmax(-1)
        try:
            chunked_loss.install({"above": 0}, lambda *a, **k: None)
            chunked_loss.PIECE = 4 * 37 * 8
            for reduction in ("batchmean", "mean", "sum"):
                for logs in (False, True):
                    wanted = taught.log() if logs else taught
                    a, b = said.clone().requires_grad_(), said.clone().requires_grad_()
                    x = usual(a, wanted, reduction=reduction, log_target=logs)
                    y = nn.KLDivLoss(reduction=reduction, log_target=logs)(b, wanted)
                    (x * 3).backward()
                    (y * 3).backward()
                    self.assertLess(abs(x.item() - y.item()) / abs(x.item()), 1e-6)
                    self.assertTrue(torch.equal(a.grad, b.grad), (reduction, logs))
                    self.assertIn("Divergence", repr([y.grad_fn, y.grad_fn.next_functions]))
            learnt = taught.clone().requires_grad_()  # both sides are: the usual way
            self.assertNotIn("Divergence", repr(F.kl_div(said, learnt, reduction="sum").grad_fn))
            for logs in (False, True):
                wanted = taught.log() if logs else taught
                a, b = said.clone().requires_grad_(), said.clone().requires_grad_()
                x = usual(a, wanted, reduction="none", log_target=logs)
                y = F.kl_div(b, wanted, reduction="none", log_target=logs)
                x.sum(-1).mean().mul(7).backward()
                y.sum(-1).mean().mul(7).backward()
                self.assertTrue(torch.equal(x, y))
                self.assertTrue(torch.equal(a.grad, b.grad))
        finally:
            F.cross_entropy, F.kl_div, chunked_loss.PIECE = original, usual, 32 << 20


class Loaders(unittest.TestCase):
    def test_fewer_workers(self):
        from torch.utils.data import DataLoader, TensorDataset

        original = DataLoader.__init__
        data = TensorDataset(torch.arange(10))
        try:
            asked = ("dataloader_workers", {"workers": 0}), ("pin_memory", {})
            with remedies(*asked, of="no step") as told:
                loader = DataLoader(
                    data,
                    batch_size=2,
                    num_workers=4,
                    prefetch_factor=8,
                    persistent_workers=True,
                    pin_memory=True,
                )
                plain = DataLoader(data, batch_size=2)
            self.assertEqual((loader.num_workers, loader.pin_memory), (0, False))
            self.assertEqual([b[0].tolist() for b in loader], [b[0].tolist() for b in plain])
            self.assertEqual(
                {f["id"]: f["equivalence"] for k, _, f in told if k == "applied"},
                {"dataloader_workers": "expected", "pin_memory": "exact"},
            )
        finally:
            DataLoader.__init__ = original


class Compiled(unittest.TestCase):
    """The partitioner of torch.compile keeps less, and the program is compiled once."""

    def losses(self, asked, rows=(512, 512, 512)):
        torch.manual_seed(0)
        body = [
            torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
            for _ in range(4)
        ]
        model, losses = torch.nn.Sequential(*body), []
        torch._dynamo.reset()
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with remedies(*asked, of=["compiled", repr(rows)]) as told:
            forward = torch.compile(model, backend="aot_eager_decomp_partition")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for i, count in enumerate(rows):
                torch.manual_seed(i)
                loss = forward(torch.randn(count, 16)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
        return losses, told, graphs

    def kept(self, told):
        """KiB that the compiler is said to keep."""
        count, unit = re.findall(r"([\d.]+)([KM])iB kept for backward fit", told.text())[0]
        return float(count) * {"K": 1, "M": 1024}[unit]

    def test_a_share_is_kept(self):
        whole, _, graphs = self.losses(())
        tight = {"limit": 1 << 20, "failed": True}  # bytes: less than the interpreter alone
        for params in ({"budget": 0.4}, {"limit": 1 << 20}):
            got, told, again = self.losses((("activation_budget", params), ("micro_batch", tight)))
            self.assertLess(furthest(whole, got), 1e-6)
            self.assertEqual(told.kinds("activation_budget"), ["applied"], told.text())
            self.assertEqual(again, graphs)

    def test_blocks_become_regions_of_the_program(self):
        """They are there before it is compiled, so that it is compiled as often."""
        whole, told, graphs = self.losses((("activation_budget", {"limit": 1 << 40}),))
        kept = self.kept(told)
        tight = {"limit": 1 << 20, "failed": True}
        got, told, again = self.losses(
            (("activation_budget", {}), ("micro_batch", tight), ("checkpointing", tight))
        )
        self.assertLess(furthest(whole, got), 1e-6)
        self.assertEqual(again, graphs)
        self.assertEqual(told.kinds("checkpointing"), ["applied"], told.text())
        self.assertLess(self.kept(told), 0.6 * kept, told.text())

    def drawn(self, asked):
        """A loop that evaluates first and draws its batches: what was said, and graphs compiled."""
        sow(0)
        body = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.1)) for _ in "abc"]
        model = torch.nn.Sequential(*body)
        torch._dynamo.reset()
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with remedies(*asked, of=["compiled, draws its batches"]) as told:
            forward = torch.compile(model, backend="aot_eager_decomp_partition")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model.eval()
            with torch.no_grad():
                forward(torch.randn(64, 16))
            model.train()
            for _ in range(3):
                optimizer.zero_grad()
                forward(torch.randn(64, 16)).square().mean().backward()
                optimizer.step()
        return told, torch._dynamo.utils.counters["stats"]["unique_graphs"] - before

    def test_regions_draw_what_the_program_draws(self):
        tight = {"limit": 1 << 20, "failed": True}
        _, graphs = self.drawn(())
        config = torch._functorch.config
        with mock.patch.object(config, "graphsafe_rng_functionalization", True):
            told, again = self.drawn(
                (("activation_budget", {}), ("micro_batch", tight), ("checkpointing", tight))
            )
            # On a card torch would seed a generator for each of them from the loop's.
            self.assertFalse(config.graphsafe_rng_functionalization)
        self.assertEqual(told.kinds("checkpointing"), ["applied"], told.text())
        self.assertEqual(again, graphs)

    def test_longer_batches_make_no_more_regions(self):
        rows, tight = (256, 512, 768, 1024), {"limit": 1 << 20, "failed": True}
        whole, _, graphs = self.losses((), rows)
        got, told, again = self.losses(
            (("activation_budget", {}), ("micro_batch", tight), ("checkpointing", tight)), rows
        )
        self.assertLess(furthest(whole, got), 1e-6)
        self.assertEqual(again, graphs)
        self.assertEqual(told.kinds("checkpointing"), ["applied"], told.text())

    def test_a_loss_inside_stays_in_the_graph(self):
        """Cross entropy in chunks is for loops; a compiled program keeps its own, whole."""
        usual, before = F.cross_entropy, torch._dynamo.utils.counters["stats"]["unique_graphs"]
        model, y = torch.nn.Linear(16, 3), torch.randint(0, 3, (8,))
        torch._dynamo.reset()
        try:
            with remedies(("chunked_loss", {"above": 1}), of="no step") as told:
                loss = torch.compile(
                    lambda x: F.cross_entropy(model(x), y), backend="aot_eager", fullgraph=True
                )
                loss(torch.randn(8, 16)).backward()
            self.assertEqual(told.kinds("chunked_loss"), [])
            after = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            self.assertEqual(after - before, 1)
        finally:
            F.cross_entropy = usual


class Refused(unittest.TestCase):
    def test_unknown_and_uninstalled(self):
        told = Told()
        registry.apply([{"id": "distill"}, {"id": "quantize_8bit"}], told.say)
        self.assertEqual(told.kinds("distill"), ["declined"])
        self.assertIn("cannot be applied inside", told.text())
        self.assertIn("bitsandbytes is not installed", told.text())


if __name__ == "__main__":
    unittest.main()
