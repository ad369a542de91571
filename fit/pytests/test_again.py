"""Calls that run out in their forward pass are made again with less; models that pick; what comes
back from host memory.
"""

import gc
import re
import unittest
import weakref
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.batch.inputs import any_inputs
from _memroom_probe.fit.calls import generators, refers
from _memroom_probe.fit.choose import choices, governor, sizes, traits
from _memroom_probe.fit.choose.case import case_of
from _memroom_probe.fit.measure import cost as measure
from _memroom_probe.fit.measure import rounding, run
from _memroom_probe.fit.remedies import activation_offload, checkpointing, recurrent
from _memroom_probe.fit.remedies.checkpointing import Part
from card import Card, inserted
from training import furthest, plain, remedies, sow

ASKED = [
    ("micro_batch", {"failed": True}),
    ("checkpointing", {"failed": True}),
    ("activation_offload", {"failed": True, "measured": True}),
]


def on(card, loop, asked=()):
    if asked and plain([loop]) is None:
        on(Card(), loop)
    sow(5)
    everything = (float("inf"), 1024)  # small tensors may travel too: all of them are small
    with mock.patch.object(activation_offload.Away.__init__, "__defaults__", everything):
        with inserted(card), remedies(*asked, of=[loop]) as told:
            return list(loop()), told


class Greedy(nn.Module):
    """Takes much room for a moment where its batch is large, which no few samples show. Draws
    numbers, and keeps an average over its calls.
    """

    def __init__(self, from_rows, moment):
        super().__init__()
        self.from_rows, self.moment = from_rows, moment
        self.body = nn.Sequential(
            *[nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(6)]
        )
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(64, 8)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        self.average(x)
        x = self.drop(self.body(x))
        if len(x) >= self.from_rows:
            torch.zeros(self.moment)
        return self.out(x)

    def average(self, x):
        pass


class Averaging(Greedy):
    def average(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        self.seen = self.mean.clone()


def loop_of(model_class, from_rows, moment):
    def loop():
        model = model_class(from_rows, moment)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(5):
            x, y = torch.randn(256, 64), torch.randint(0, 8, (256,))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss.item() + float(model.mean.abs().sum())

    return loop


class RunAgain(unittest.TestCase):
    def peak_of(self, loop):
        card = Card()
        losses, _ = on(card, loop)
        return losses, card.most

    def test_with_less_and_the_same_numbers(self):
        _, plain = self.peak_of(loop_of(Greedy, 10**9, 0))
        moment = int(0.5 * plain) // 4  # elements
        loop = loop_of(Greedy, 200, moment)
        whole, _ = self.peak_of(loop)
        got, told = on(Card(int(0.7 * plain)), loop, ASKED)
        self.assertIn("memory ran out in its forward pass; it ran again with", told.text())
        self.assertEqual(len(got), len(whole), told.text())
        self.assertLess(furthest(whole, got), 1e-5, told.text())

    def test_what_a_call_moves_on_is_put_back(self):
        """Its batch cannot be split. The average must count every batch once."""
        _, plain = self.peak_of(loop_of(Averaging, 10**9, 0))
        loop = loop_of(Averaging, 200, int(0.3 * plain) // 4)
        whole, _ = self.peak_of(loop)
        told = []
        for percent in (75, 80, 85, 90, 70, 73, 78, 83, 88, 93, 95):
            try:
                got, said = on(Card(percent * plain // 100), loop, ASKED[:2])
            except torch.cuda.OutOfMemoryError:
                continue  # nothing there is small enough
            told.append(said.text())
            self.assertEqual(got, whole, said.text())
            if percent == 90 and any("it ran again with" in text for text in told):
                break
        self.assertTrue(any("it ran again with" in text for text in told), told)

    def test_large_buffers_are_watched_and_not_copied(self):
        model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4000))
        before = run.Before(model, most=1000)
        self.assertEqual(len(before.state.buffers), 3)
        model[0].running_mean.add_(1)
        self.assertTrue(before.can_be_put_back())
        before.put_back()
        self.assertEqual(float(model[0].running_mean.sum()), 0)
        model[1].running_mean.add_(1)
        self.assertFalse(before.can_be_put_back())

    def test_not_where_somebody_would_see_it(self):
        chief = governor.Governor(lambda *a, **k: None, {"micro_batch"})
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        case = case_of(model, choices.as_it_is(), [choices.as_it_is()])
        with inserted(Card()):
            self.assertTrue(chief.running._may_run_again(model, case))
            with mock.patch("torch.distributed.is_initialized", return_value=True):
                self.assertFalse(chief.running._may_run_again(model, case))
            seen = model[0].register_forward_hook(lambda *_: None)
            self.assertFalse(chief.running._may_run_again(model, case))
            seen.remove()
            self.assertTrue(chief.running._may_run_again(model, case))
            model.compile(backend="eager")
            self.assertFalse(chief.running._may_run_again(model, case))

    def test_an_argument_that_was_changed_ends_it(self):
        class Changes(Greedy):
            def forward(self, x):
                return super().forward(x.add_(1))

        _, plain = self.peak_of(loop_of(Changes, 10**9, 0))
        with self.assertRaises(torch.cuda.OutOfMemoryError):
            on(Card(int(0.7 * plain)), loop_of(Changes, 200, plain), ASKED)


class Noisy(nn.Module):
    """Draws for each of its few samples, which take much."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *[nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(4)]
        )

    def forward(self, x):
        level = torch.randint(1, 9, (len(x), 1, 1)) / 9
        noise = torch.randn_like(x)
        return F.mse_loss(self.body(x * level + noise * (1 - level)), noise)


def few_samples():
    model = Noisy()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(4):
        loss = model(torch.randn(6, 1200, 64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class FewSamples(unittest.TestCase):
    def test_draw_what_the_batch_draws_though_five_of_six_do_not_fit(self):
        plenty = Card()
        whole, _ = on(plenty, few_samples)
        got, told = on(Card(int(0.6 * plenty.most)), few_samples, ASKED[:1])
        self.assertIn("micro-batches", told.text())
        self.assertNotIn("expected", [f.get("equivalence") for _, _, f in told])
        self.assertLess(furthest(whole, got), 1e-5, told.text())


class Router(nn.Module):
    def __init__(self, detached=False):
        super().__init__()
        self.gate, self.detached = nn.Linear(8, 4), detached
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        scores = self.gate(x)
        chosen = (scores.detach() if self.detached else scores).topk(1, -1).indices[:, 0]
        return torch.stack([self.experts[int(i)](row) for i, row in zip(chosen, x)])


class Sorts(nn.Module):
    """Puts its samples into another order by what it is given, and by whole numbers."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(8, 8)

    def forward(self, x, lengths):
        order = lengths.argsort()
        return self.inside(x)[order] + x.sort(1).values


class Picks(unittest.TestCase):
    def test_among_its_own_results(self):
        x = torch.randn(6, 8)
        for model in (Router(), Router(detached=True)):
            self.assertEqual(rounding.picks(model, model, any_inputs((x,), {})), "topk")

    def test_not_among_what_it_is_given(self):
        given = torch.randn(6, 8), torch.arange(6)
        model = Sorts()
        self.assertEqual(rounding.picks(model, model, any_inputs(given, {})), "")

    def test_dropout_is_no_rounding(self):
        model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 3))
        apart = rounding.of_pieces(model, model, any_inputs((torch.randn(8, 6),), {}))
        self.assertLess(apart, 1e-4)

    def test_a_loss_that_matches_or_picks_the_hardest(self):
        yes = (
            "rows, cols = linear_sum_assignment(cost.cpu())",
            "hard = loss.flatten().topk(k).values",
            "hard, _ = torch.sort(loss, descending=True)",
            "losses.view(-1).sort(descending=True)",
        )
        no = (
            "_, pred = output.topk(5, 1, True, True)",
            "batch.sort(key=len)",
            "loss = criterion(out, target)",
        )
        for text, wanted in [*((t, True) for t in yes), *((t, False) for t in no)]:
            found = re.search(traits.MATCHES, text)
            self.assertEqual(bool(found), wanted, text)

    def test_nothing_is_split(self):
        def loop():
            hidden = [
                nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8)) for _ in range(5)
            ]
            model = nn.Sequential(*hidden, Router())
            optimizer = torch.optim.SGD(model.parameters(), 1e-2)
            for _ in range(3):
                loss = model(torch.randn(200, 8)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss.item()

        with mock.patch.object(refers, "script_says", return_value=False):
            plenty = Card()
            whole, _ = on(plenty, loop)
            got, told = on(Card(int(0.8 * plenty.most)), loop, ASKED)
        self.assertEqual(got, whole, told.text())
        self.assertNotIn("micro-batches", told.text())


class Sizes(unittest.TestCase):
    def test_a_sequence_may_grow_beside_a_larger_state(self):
        state, few, more = torch.zeros(3, 20, 50), torch.zeros(40, 20), torch.zeros(50, 20)
        before, now = (sizes.size_of((x, [state]), {}) for x in (few, more))
        self.assertEqual((before[0], now[0]), (3000, 3000))
        self.assertAlmostEqual(sizes.growth(before, now), 1.25)
        self.assertEqual(sizes.growth(now, before), 1.0)
        self.assertEqual(sizes.largest(now, before), now)
        self.assertEqual(sizes.growth((), now), float("inf"))
        named = [sizes.size_of(({"ids": x},), {"mask": x}) for x in (few, more)]
        self.assertAlmostEqual(sizes.growth(*named), 1.25)

    def test_other_arguments_are_compared_by_the_largest(self):
        two, one = sizes.size_of((torch.zeros(4), torch.zeros(9)), {}), (9, 4)
        self.assertEqual(sizes.growth(one, two), 1.0)
        self.assertEqual(sizes.largest(one, two), one)


class OneAfterTheOther(unittest.TestCase):
    """A script that compares models lets each one go before it makes the next."""

    def train(self):
        hidden = [nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in "abcde"]
        model = nn.Sequential(*hidden)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(4):
            loss = model(torch.randn(256, 32)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [weakref.ref(m) for m in (model, *hidden, hidden[0][0])]

    def test_a_model_is_gone_when_the_script_lets_it_go(self):
        plenty = Card()
        with inserted(plenty):
            self.train()
        card = Card(int(0.6 * plenty.most))
        for asked in (ASKED, [*ASKED[1:2], ("optimizer_offload", {"measured": True})]):
            with inserted(card), remedies(*asked, of="what is let go") as told:
                for _ in range(3):
                    parts = self.train()
                    gc.collect()
                    self.assertEqual([p() for p in parts if p() is not None], [], told.text())
            self.assertIn("applied", told.text())


class Forgotten(unittest.TestCase):
    def test_no_hook_on_optimizers_stays(self):
        from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

        with remedies(*ASKED, of="nothing runs"):
            pass
        before = len(hooks)
        with remedies(*ASKED, ("optimizer_offload", {"measured": True}), of="nothing runs"):
            self.assertGreater(len(hooks), before)
        self.assertEqual(len(hooks), before)


class SmallCalls(unittest.TestCase):
    def test_what_takes_next_to_nothing_stays_as_it_is(self):
        chief = governor.Governor(lambda *a, **k: None, set(), failed=True)
        whole = choices.Choice("as it is", 4, 2)
        pieces = choices.Choice("pieces", 2, 1, share=object())
        model, other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.assertIs(chief.look._for_first_step(model, [whole, pieces], 100), pieces)
        large = choices.Choice("as it is", 60, 50)
        chief.cases.trained[other] = case_of(other, large, [large])
        self.assertIs(chief.look._for_first_step(model, [whole, pieces], 100), whole)
        self.assertIs(chief.look._for_first_step(model, [whole, pieces], 30), pieces)


class Masks(unittest.TestCase):
    def test_the_generator_of_a_card_is_set_only_where_it_has_moved(self):
        for found, sets in ((torch.zeros(16), 0), (torch.ones(16), 1)):
            states = torch.get_rng_state(), [torch.zeros(16)], []
            with mock.patch("torch.cuda.get_rng_state", return_value=found):
                with mock.patch("torch.cuda.set_rng_state") as set_state:
                    generators.put_back(states)
            self.assertEqual(set_state.call_count, sets)

    def test_layers_that_draw_masks_are_cut_after_an_attempt_only(self):
        self.assertTrue(recurrent.drops(nn.LSTM(2, 2, 2, dropout=0.5)))
        self.assertFalse(recurrent.drops(nn.LSTM(2, 2, 1)))
        self.assertFalse(recurrent.drops(nn.LSTM(2, 2, 2, dropout=0.5).eval()))


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, edges):
        return self.second(torch.relu(self.first(x)[edges]))


class Around(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x) + x


class Recompute(unittest.TestCase):
    def test_two_gradients_of_its_largest_tensor(self):
        part = Part("a", nn.Identity(), 30, 5)
        cost = mock.Mock(saved_row=40, peak_row=44, output_row=1)
        self.assertEqual(choices._at_recompute(cost, [part], {0}), 10 + 30 + 2)
        part.largest = 15
        self.assertEqual(choices._at_recompute(cost, [part], {0}), 10 + 30 + 30)

    def test_runs_of_a_sequential_keep_what_goes_into_them(self):
        blocks = [
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in "abcdefgh"
        ]
        model, x = Around(nn.Sequential(nn.Linear(64, 64), *blocks)), torch.randn(64, 64)
        card = Card()
        with inserted(card), remedies(of="no step"):
            found = measure.cost(model, model, any_inputs((x,), {}), card)
            for parts in found.grains:
                self.assertTrue(all(p.end > p.begin for p in parts))
                self.assertTrue(all(0 < p.largest <= p.saved for p in parts))
                checkpointing.Checkpointing().use(model, parts)
                held = card.held()
                result = model(x)
                kept = card.held() - held - result.nbytes
                wanted = (found.saved_row - sum(p.gain for p in parts)) * len(x)
                self.assertLess(kept, 1.1 * wanted + found.saved_fixed)
                self.assertLess(wanted, 0.6 * found.saved_row * len(x))
                result.sum().backward()
                model.zero_grad()
                del result

    def test_graphs_are_not_measured_by_a_few_of_their_edges(self):
        """Several edges for each node are not several samples for each one."""
        model = Graph()
        x, edges = torch.randn(40, 16), torch.randint(0, 40, (120,))
        edges[0] = 39
        with inserted(Card(1 << 30)), remedies(*ASKED, of="no step") as told:
            model(x, edges).sum().backward()
        self.assertIn("as a graph's edges do", told.text())
        self.assertNotIn("Error", told.text())


class ComeBack(unittest.TestCase):
    def back(self, tensor):
        away = activation_offload.Away(nn.Linear(1, 1), (), above=0)
        packed = away.pack(tensor)
        self.assertNotIsInstance(packed, torch.Tensor)
        return activation_offload._unpack(packed)

    def test_with_the_gaps_that_a_kernel_asked_for(self):
        padded = torch.randn(2, 3, 13, 16)[..., :13]
        got = self.back(padded)
        self.assertEqual(got.stride(), padded.stride())
        self.assertTrue(torch.equal(got, padded))

    def test_but_not_with_more_gaps_than_numbers(self):
        column = torch.randn(50, 40)[:, 3:5]
        got = self.back(column)
        self.assertTrue(torch.equal(got, column))
        self.assertTrue(got.is_contiguous())


if __name__ == "__main__":
    unittest.main()
