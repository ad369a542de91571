"""The choice made on the first call: enough for the room there is, the cheapest way, nothing else
changed.
"""

import gc
import unittest
import weakref

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe import made
from _memroom_probe.fit import registry
from _memroom_probe.fit.batch.inputs import Inputs
from _memroom_probe.fit.calls import outermost
from _memroom_probe.fit.calls.again import fit_for_recompute
from _memroom_probe.fit.choose import choices, governor, means
from _memroom_probe.fit.choose.case import case_of
from _memroom_probe.fit.choose.search import with_others
from _memroom_probe.fit.measure import cost as measure
from _memroom_probe.fit.measure import run
from _memroom_probe.fit.measure.parts import by_sight
from _memroom_probe.fit.memory import floor, room
from _memroom_probe.fit.remedies import microbatch
from test_microbatch import TinyGPT, sentences
from training import Told, furthest, parameters_apart, remedies, sgd, train

BOTH = ("micro_batch", "checkpointing")


class Residual(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Linear(width, 4 * width),
            norm(4 * width),
            nn.Linear(4 * width, width),
        )
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return x + self.second(self.drop(F.gelu(self.norm(self.first(x)))))


def deep(norm=nn.LayerNorm, depth=6, width=32, dropout=0.0):
    torch.manual_seed(0)
    body = nn.Sequential(*[Residual(width, norm) for _ in range(depth)])
    for b in body:
        b.drop.p = dropout
    return nn.Sequential(nn.Linear(8, width), body, nn.Linear(width, 3))


def points(n=64, count=4):
    torch.manual_seed(2)
    return [(torch.randn(n, 8), torch.randint(0, 3, (n,))) for _ in range(count)]


def classify(m, b):
    return F.cross_entropy(m(b[0]), b[1])


def needs(model, batch, outside=True):
    """Bytes that the whole batch is predicted to need, and the governor's candidates."""
    inputs = Inputs((batch[0],), {}) if outside else Inputs(batch, {})
    with remedies(of="no step"):
        outermost.handle(lambda module, call, args, kwargs: call(*args, **kwargs))
        with outermost.inside():
            cost = measure.cost(model, model, inputs, room.HostRoom(1 << 40))
    plan = microbatch.MicroBatch(lambda *a, **k: None, None).plan(
        model, model, inputs._rebuild(inputs.leaves)[0], {}
    )[0]
    return list(choices.all_of(inputs, plan, cost, offload=False))


class Choice(unittest.TestCase):
    def limited(self, share, model, outside=True, batch=None):
        """Remedies whose room is a share of what the whole batch needs, on top of what the process
        holds.
        """
        batch = batch or points()[0]
        whole = needs(model, batch, outside)[0].needs
        held = room.HostRoom(1).held()
        return [
            (
                id,
                {
                    "limit": int((held + 4 * room.MIB + share * whole) / room.SAFETY / 0.8),
                    "failed": True,
                },
            )
            for id in BOTH
        ]

    def test_whole_batch_fits(self):
        model = deep()
        _, _, told = train(
            model, classify, points(), sgd, [(id, {"limit": 1 << 40}) for id in BOTH]
        )
        self.assertIn("fits as it is", told.text())
        self.assertNotIn("applied", told.text())

    def test_predicted_is_what_will_be_there(self):
        """However much room there is, and although the batch is said to have failed."""
        held = room.HostRoom(1).held()
        _, _, told = train(
            deep(),
            classify,
            points(),
            sgd,
            [(id, {"limit": 1 << 40, "failed": True}) for id in BOTH],
        )
        predicted = [fields["predicted"] for kind, _, fields in told if kind == "applied"]
        self.assertTrue(predicted, told.text())
        self.assertLess(max(predicted), 2 * held)

    def test_some_blocks_are_enough(self):
        model = deep()
        some = [c for c in needs(model, points()[0]) if c.checkpoint and not c.share]
        few, many = some[0], some[-1]
        self.assertLess(many.needs, few.needs)
        self.assertLess(few.twice, many.twice)

    def test_tight_room_same_trajectory(self):
        batches = points(16)  # one piece a row
        for norm in (nn.LayerNorm, nn.BatchNorm1d):
            with self.subTest(norm.__name__):
                model = deep(norm)
                whole, a, _ = train(model, classify, batches, sgd)
                asked = [
                    (id, {"limit": room.HostRoom(1).held()}) for id in BOTH
                ]  # no room at all: everything is used
                tight, b, told = train(model, classify, batches, sgd, asked)
                self.assertIn("cannot fit: needs at least", told.text())
                self.assertIn("applied", told.kinds("checkpointing"))
                self.assertLess(furthest(whole, tight), 1e-5)
                self.assertLess(parameters_apart(a, b), 1e-5)
                for x, y in zip(
                    a.buffers(), b.buffers()
                ):  # running statistics moved on once a step, not twice
                    self.assertTrue(torch.equal(x, y))

    def test_first_step_is_safe(self):
        """After running out, the first step changes something, is equal to the bit where that
        leaves room for more calls, and is run with the least after a plan of ours that ran out;
        whichever remedy of those that act together was told so.
        """
        model = deep()
        candidates = needs(model, points()[0])
        whole, asked = candidates[0].needs, {}
        for together in (
            [
                ("activation_offload", {"measured": True}),
                ("micro_batch", {"failed": True, "factor": 0.75}),
                ("checkpointing", {"failed": True}),
            ],
            [("micro_batch", {"failed": True}), ("checkpointing", {})],
        ):
            asked[len(together)] = registry._together([params for _, params in together])
        self.assertEqual(
            asked[3],
            {"limit": None, "failed": True, "later": False, "factor": 0.75, "untried": False},
        )
        for count, least in ((3, True), (2, False)):
            chief = governor.Governor(lambda *a, **k: None, set(BOTH), **asked[count])
            choice = chief.look._for_first_step(model, candidates, 100 * whole)
            self.assertTrue(choice.remedies())
            self.assertLessEqual(with_others(choice), with_others(candidates[0]))
            if least:
                self.assertLessEqual(
                    with_others(choice),
                    1.05 * min(with_others(c) for c in candidates),
                )

    def test_optimizer_state_leaves_when_nothing_else_fits(self):
        """Host memory that is treated as a card's: what is decided and what comes of it must be
        right there too.
        """

        class Card(room.HostRoom):
            is_card = True
            kept = room.HostRoom.held

        def adam(parameters):
            return torch.optim.AdamW(parameters, 1e-3)

        model, of = deep(), room.of
        whole, a, _ = train(model, classify, points(16, 3), adam)
        more = [
            ("activation_offload", {"measured": True}),
            ("optimizer_offload", {"measured": True}),
        ]
        try:
            room.of = lambda device, limit=None: Card(limit)
            for limit, leaves in ((room.HostRoom(1).held(), True), (1 << 40, False)):
                got, b, told = train(
                    model,
                    classify,
                    points(16, 3),
                    adam,
                    [(id, {"limit": limit, "failed": True}) for id in BOTH] + more,
                )
                self.assertEqual(told.kinds("optimizer_offload"), ["applied"] * leaves, told.text())
                self.assertLess(furthest(whole, got), 1e-5)
                self.assertLess(parameters_apart(a, b), 1e-4)
        finally:
            room.of = of

    def test_optimizer_state_leaves_where_only_that_keeps_the_bits(self):
        p = nn.Parameter(torch.zeros(1000))
        optimizer = torch.optim.Adam([p])
        p.sum().backward()
        optimizer.step()
        g = means.Means(Told(), {"optimizer_offload"})
        state = room.state() + g.state_to_come()
        self.assertGreaterEqual(state, 8000)
        equal = choices.Choice("blocks", 1e6, 0, checkpoint=["a part"])
        pieces = choices.Choice("pieces", 1e5, 0, share=microbatch.Share(1))
        cases = (
            (1e6 - state, "GAN", True),
            (1e6 - state, "", False),  # nothing makes rounding larger: pieces will do
            (1e6 - state - 1, "GAN", False),  # it would not be enough
            (1e6, "GAN", False),  # it fits as it is
        )
        for free, amplifies, wanted in cases:
            found = g.is_equal_without_state([[equal, pieces]], free, amplifies)
            self.assertEqual(found, wanted, (free, amplifies))
        equal.seconds, pieces.seconds = 1.0, 0.5
        self.assertFalse(g.is_equal_without_state([[equal, pieces]], 1e6 - state, "GAN"))
        pieces.seconds = 0.98  # times the price of rounding: more
        self.assertTrue(g.is_equal_without_state([[equal, pieces]], 1e6 - state, "GAN"))
        g.state.active = True
        self.assertFalse(g.is_equal_without_state([[equal, pieces]], 1e6 - state, "GAN"))
        self.assertGreater(g.travels(), 0)
        for hook in g.state.hooks:
            hook.remove()

    def test_a_choice_fits_in_every_kind_of_step(self):
        """A critic alone has room for more than beside the actor that it judges."""

        def case(module):
            ways = [(100, 90, 1.0), (60, 40, 2.0), (30, 10, 4.0)]  # needs, stays, seconds
            found = [choices.Choice(str(n), n, s, seconds=t) for n, s, t in ways]
            return case_of(module, found[-1], found)

        critic, actor = case(nn.Linear(1, 1)), case(nn.Linear(1, 1))
        g = governor.Governor(Told(), set()).settling
        alone = {critic: critic.candidates[0]}
        self.assertEqual(g._fitting_elsewhere({critic: 1}, alone, 100, 30), alone)
        g._rooms[frozenset([critic, actor])] = {critic: 1, actor: 1}, 75
        got = g._fitting_elsewhere({critic: 1}, alone, 100, 30)
        self.assertEqual(got[critic].needs, 60)  # with the actor 40 + 10 + 20
        g._rooms[frozenset([critic, actor])] = {critic: 1, actor: 1}, 45
        got = g._fitting_elsewhere({critic: 1}, alone, 100, 30)
        self.assertIs(got[critic], critic.choice)  # nothing more than now

    def test_nothing_is_loosened_before_a_loop_has_come_round(self):
        class Seen:
            around = "a card"

            def __init__(self, *together):
                self.together = together

        g = governor.Governor(Told(), set()).settling
        one = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
        self.assertFalse(g._may_be_followed_by_others(Seen("critic")))
        other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
        g = governor.Governor(Told(), set()).settling
        found = [g._may_be_followed_by_others(Seen(*names)) for names in ("c", "ca", "c", "ac")]
        self.assertEqual(found, [True, True, False, False])
        del one, other

    def test_gradient_of_what_is_saved_last(self):
        """Logits are saved last and their gradient is there with everything else; a wide first
        layer's is not.
        """
        for widths, late in (((8, 200, 200, 400), True), ((400, 200, 200, 8), False)):
            layers = [
                layer
                for a, b in zip((4,) + widths, widths)
                for layer in (nn.Linear(a, b), nn.Tanh())
            ]
            model = nn.Sequential(*layers)
            tally = run._Tally(model, ())
            with torch.autograd.graph.saved_tensors_hooks(tally.pack, tally.unpack):
                model(torch.randn(32, 4))
            self.assertEqual(tally.late(), 32 * 400 * 4 if late else 0)

    def test_worst_case_first(self):
        """The longest batch is measured before it comes, an evaluation and a checkpoint with it,
        and the loop sees nothing of it.
        """

        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 40

            def __getitem__(self, i):
                torch.rand(1)  # augments, say
                return torch.full((50 if i in (30, 33) else 6,), i, dtype=torch.long)

        class Reads(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.out = nn.Embedding(40, 16), nn.Linear(16, 40)

            def forward(self, x):
                seen.longest = max(seen.longest, x.shape[1])
                return self.out(self.embed(x))

        def run(*asked):
            torch.manual_seed(0)
            model = Reads()
            optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
            with remedies(*asked, of=[Reads]) as told:
                loader = torch.utils.data.DataLoader(
                    Samples(),
                    4,
                    collate_fn=lambda b: nn.utils.rnn.pad_sequence(b, batch_first=True),
                )
                for x in loader:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                    tried.append(seen.longest)
            return losses, told

        class Seen:  # no container: those are put back
            longest = 0

        original, seen, tried = torch.utils.data.DataLoader.__iter__, Seen(), []
        try:
            whole, _ = run()
            seen.longest = 0
            tried.clear()
            got, told = run(*[(id, {"limit": 1 << 40, "worst": True}) for id in BOTH])
        finally:
            torch.utils.data.DataLoader.__iter__ = original
        self.assertEqual(whole, got)
        self.assertEqual(tried[0], 50, told.text())  # in the first step, long before it comes
        for words in (
            "the longest batch of 40 samples: 4x50",
            "an evaluation of the longest batch",
            "saving a checkpoint writes",
        ):
            self.assertIn(words, told.text())

    def test_results_are_let_go(self):
        """Frames that an exception or an import keeps would keep a step's tensors, and a card's
        allocator asks for no collection.
        """

        class TimeFirst(nn.Module):
            def __init__(self):
                super().__init__()
                self.hidden, self.out = nn.GRU(8, 16), nn.Linear(16, 50)

            def forward(self, x):
                return F.log_softmax(self.out(self.hidden(x)[0]), -1)

        def step(m, b):
            out = m(b)
            seen.append(weakref.ref(out))
            return F.nll_loss(out.reshape(-1, 50), torch.zeros(out.numel() // 50, dtype=torch.long))

        batches = [torch.randn(7, 12, 8) for _ in range(5)]
        tight = [(id, {"limit": room.HostRoom(1).held(), "failed": True}) for id in BOTH]
        for asked in (
            tight,
            [("micro_batch", {"pieces": 3})],
            [("activation_offload", {"above": 16})],
        ):
            seen = []
            gc.collect()
            gc.disable()
            try:
                train(TimeFirst(), step, batches, sgd, asked)
                self.assertEqual([r() is not None for r in seen[-4:]], [False] * 4, asked)
            finally:
                gc.enable()

    def test_least_that_training_needs(self):
        """Weights, gradients and optimizer state are counted, each once, with state that is still
        to come.
        """
        model = deep()
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        gc.collect()
        before = floor.of(torch.device("cpu"))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            now = floor.of(torch.device("cpu"))
            self.assertEqual(
                now.gradients,
                sum(
                    p.numel() * p.element_size()
                    for m in made.modules.live()
                    for p in m._parameters.values()
                    if p is not None and p.requires_grad
                ),
            )
            self.assertLess(
                abs(now.state - before.state - 2 * size), 1024
            )  # and a step count for each parameter
            classify(model, points()[0]).backward()
            optimizer.step()
        self.assertIn("optimizer state", now.words())
        told = Told()
        teller = floor.Teller(told.say, size)
        for _ in range(2):
            teller.look(torch.device("cpu"))
        self.assertEqual(told.kinds("cannot_fit"), ["note"])
        # State that can wait elsewhere is no reason, the rest is.
        for limit, reasons in ((now.bytes - 1, 0), (now.weights + now.gradients - 1, 1)):
            told = Told()
            floor.Teller(told.say, limit, lambda optimizer: True).look(torch.device("cpu"))
            self.assertEqual(len(told.kinds("cannot_fit")), reasons)
            self.assertNotIn("optimizer state", told.text())
        moving = []
        model._apply(lambda t: (moving.append(floor._on_its_way()), t)[1])
        self.assertTrue(all(m is model for m in moving))

    def test_returned_loss_is_not_recomputed(self):
        model = TinyGPT()
        for c in needs(model, sentences()[0], outside=False):
            if c.share and not c.checkpoint:
                self.assertEqual(c.twice, 0)
        asked = [(id, {"limit": room.HostRoom(1).held()}) for id in BOTH]
        whole, _, _ = train(model, lambda m, b: m(*b)[1], sentences(), sgd)
        tight, _, told = train(model, lambda m, b: m(*b)[1], sentences(), sgd, asked)
        self.assertIn("applied", told.kinds("micro_batch"))
        self.assertLess(furthest(whole, tight), 2e-6)

    def test_forward_passes_are_counted(self):
        """A module that returns its loss runs each row forward once; one that does not, at most
        twice.
        """
        rows = []
        for step, batch, model, most in (
            (lambda m, b: m(*b)[1], sentences()[0], TinyGPT(), 16),
            (classify, points(16)[0], deep(), 32),
        ):
            layer = model.head if isinstance(model, TinyGPT) else model[2]
            inner = layer.forward
            with remedies(("micro_batch", {"pieces": 4}), of="no step"):
                step(model, batch).backward()  # the trial is over after this one
                layer.forward = lambda x: (rows.append(len(x)), inner(x))[1]
                rows.clear()
                step(model, batch).backward()
                self.assertEqual(sum(rows), most)
                layer.forward = inner

    def test_longer_rows_make_smaller_pieces(self):
        share = microbatch.Share(rows=8, keep=2, elements=100)
        long, short = torch.zeros(32, 400), torch.zeros(32, 50)
        self.assertEqual(share.now(Inputs((long,), {})), (2, 2))
        self.assertEqual(share.now(Inputs((short,), {}))[0], 16)

    def test_a_larger_batch_is_measured_anew(self):
        """A small batch to begin with, then the real ones: the choice follows, and the losses
        stay.
        """
        model, batches = deep(), points(2, 1) + points(16, 3) + points(1, 1)
        whole, _, _ = train(model, classify, batches, sgd)
        tight, _, told = train(
            model, classify, batches, sgd, [(id, {"limit": room.HostRoom(1).held()}) for id in BOTH]
        )
        rows = [fields.get("rows") for kind, _, fields in told if kind == "applied"]
        self.assertIn(2, rows)
        self.assertIn(16, rows)
        self.assertLess(furthest(whole, tight), 1e-5)

    def test_pieces_that_fail_in_a_run_give_way_to_blocks(self):
        class Trims(nn.Module):
            """Cuts to the longest row of what it sees: pieces have outputs of different shapes."""

            def __init__(self):
                super().__init__()
                self.body = deep()

            def forward(self, x, lengths):
                return self.body(x[:, : int(lengths.max())])

        torch.manual_seed(0)
        model = Trims()
        batches = [(torch.randn(16, 6, 8), torch.full((16,), 6))] + [
            (torch.randn(16, 6, 8), torch.tensor([6] * 4 + [3] * 12)) for _ in range(2)
        ]
        step = lambda m, b: m(*b).pow(2).mean()
        whole, _, _ = train(model, step, batches, sgd)
        tight, _, told = train(
            model, step, batches, sgd, [(id, {"limit": room.HostRoom(1).held()}) for id in BOTH]
        )
        self.assertIn("different shapes", told.text())
        self.assertEqual(told.kinds("checkpointing")[-1], "applied")
        self.assertLess(furthest(whole, tight), 1e-5)

    def test_dropout_in_blocks(self):
        """Recomputed blocks drop what they dropped: the trajectory is that of checkpointing
        nothing.
        """
        model = deep(dropout=0.5)
        whole, _, _ = train(model, classify, points(), sgd)
        held = room.HostRoom(1).held()
        tight, _, told = train(model, classify, points(), sgd, [("checkpointing", {"limit": held})])
        self.assertIn("applied", told.kinds("checkpointing"))
        self.assertLess(furthest(whole, tight), 1e-6)


class GraphLayer(nn.Module):
    """One child, and most of the work beside it: rows are gathered and scattered along edges."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, edges):
        h = self.lin(x)
        return torch.zeros_like(h).index_add(0, edges[1], torch.tanh(h[edges[0]]))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([GraphLayer() for _ in range(3)])

    def forward(self, x, edges):
        for layer in self.layers:
            x = layer(x, edges)
        return x


class Blocks(unittest.TestCase):
    def test_found(self):
        import torchvision

        self.assertEqual(len(by_sight(torchvision.models.resnet18())), 8)
        self.assertEqual(
            len(by_sight(torchvision.models.VisionTransformer(32, 8, 4, 2, 64, 128))), 4
        )
        self.assertEqual(len(by_sight(torchvision.models.convnext_tiny())), 18 + 3 + 1)
        self.assertEqual(by_sight(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), [])
        self.assertEqual(
            [
                p.name
                for p in by_sight(nn.ModuleList([GraphLayer(), nn.LayerNorm(4), GraphLayer()]))
            ],
            ["0", "2"],
        )

    def test_layers_of_its_own_kept_by_name(self):
        """Where there are several of a kind; one alone may be the whole network."""

        class Weighted(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(4, 4))

        class OwnNorm(nn.LayerNorm):
            pass

        class Named(nn.Module):
            def __init__(self, *layers):
                super().__init__()
                for i, layer in enumerate(layers):
                    setattr(self, "conv%d" % i, layer)

        for layers, names in (
            ((GraphLayer(), GraphLayer()), ["conv0", "conv1"]),
            ((Weighted(), nn.LayerNorm(4), Weighted()), ["conv0", "conv2"]),
            ((GraphLayer(), nn.LayerNorm(4)), []),
            ((OwnNorm(4), OwnNorm(4)), []),
            ((nn.Bilinear(4, 4, 4), nn.Bilinear(4, 4, 4)), []),
        ):
            self.assertEqual([p.name for p in by_sight(Named(*layers))], names)

    def test_of_a_graph(self):
        """Its edges name rows of the whole batch, so that it cannot be tried on a part: its layers
        are found by sight.
        """
        edges = torch.randint(0, 50, (2, 300), generator=torch.Generator().manual_seed(1))
        nodes = [torch.randn(50, 4, generator=torch.Generator().manual_seed(i)) for i in range(4)]
        step = lambda model, x: model(x, edges).square().mean()
        model = GraphNet()
        whole, a, _ = train(model, step, nodes, sgd)
        again, b, told = train(model, step, nodes, sgd, [("checkpointing", {"limit": 1})])
        self.assertIn("all 3 blocks", told.text())
        self.assertEqual(whole, again)
        self.assertEqual(parameters_apart(a, b), 0)

    def test_hooked_blocks_are_left_alone(self):
        model = deep()
        model[1][2].register_forward_hook(lambda m, i, o: None)
        self.assertIn("hook", fit_for_recompute(model[1][2]))
        self.assertIsNone(fit_for_recompute(model[1][1]))


class Measure(unittest.TestCase):
    def test_blocks_do_not_count_half_copies_of_weights(self):
        """Autocast saves a copy of each weight once, whatever the batch: no row can be charged with
        it.
        """
        model, (x, _) = deep(depth=4, width=128), points(32)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cost = measure.cost(model, model, Inputs((x,), {}), room.of(torch.device("cpu")))
        self.assertTrue(cost.grains)
        for parts in cost.grains:
            self.assertLessEqual(sum(p.saved for p in parts), 1.02 * cost.saved_row)


class Room(unittest.TestCase):
    def test_state_to_come(self):
        model = nn.Linear(100, 100, bias=False)
        for make, copies in (
            (lambda p: torch.optim.AdamW(p), 2),
            (lambda p: torch.optim.SGD(p, 0.1), 0),
            (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 1),
            (lambda p: torch.optim.Adafactor(p), 0),
        ):
            optimizer = make(model.parameters())
            self.assertEqual(room.state_of(optimizer), copies * 40000)
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
            if copies and not isinstance(optimizer, torch.optim.SGD):
                self.assertEqual(room.state_of(optimizer), 0)


if __name__ == "__main__":
    unittest.main()
