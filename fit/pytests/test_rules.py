"""The small rules of fit, each by itself: fast, so that a wrong one is found by its own test."""

import contextlib
import itertools
import types
import unittest
from unittest import mock

import torch
from _memroom_probe.fit.batch import inputs, losses, outputs
from _memroom_probe.fit.batch.joined import Joined
from _memroom_probe.fit.calls import packing
from _memroom_probe.fit.choose import choices, forecast, governor, means, search, telling, traits
from _memroom_probe.fit.choose.case import Case
from _memroom_probe.fit.choose.company import Companies
from _memroom_probe.fit.measure import cost, rounding, spaces, speed
from _memroom_probe.fit.memory import room
from _memroom_probe.fit.remedies import accumulate, microbatch
from _memroom_probe.fit.remedies.checkpointing import Part


def batch(*tensors):
    return inputs.Inputs(tensors, {})


def choice(needs, stays, seconds, **more):
    return choices.Choice("%s bytes" % needs, needs, stays, seconds=seconds, **more)


def case(*candidates):
    return Case(lambda: None, "m", candidates[0], list(candidates))


class Samples(unittest.TestCase):
    def test_a_recurrent_state_is_cut_along_its_second_dimension(self):
        found = batch(torch.zeros(6, 5, 4), torch.zeros(2, 6, 3))
        self.assertEqual((found.rows, found.dims), (6, [0, 1]))

    def test_a_matrix_beside_the_batch_is_not_cut_by_chance(self):
        """(features, batch) of two dimensions is a weight, not a state."""
        self.assertEqual(batch(torch.zeros(6, 5), torch.zeros(3, 6)).dims, [0, None])

    def test_lengths_beside_time_first(self):
        found = inputs.Inputs((torch.zeros(9, 6, 4), torch.zeros(6)), {}, dim=1)
        self.assertEqual((found.rows, found.dims), (6, [1, 0]))

    def test_whole_numbers_tell_where_the_batch_is(self):
        """Lengths and places in a sequence point beyond the end of a shorter one, which a card does
        not survive.
        """
        lengths, fields = torch.tensor([9, 3, 5, 1, 2, 4]), torch.tensor([0, 10, 30, 40, 45, 49])
        for first, beside, expected in (
            (torch.zeros(6, 9), lengths, {0}),
            (torch.zeros(6, 9), lengths.int() - 1, {0}),
            (torch.zeros(9, 6), lengths, {1}),
            (torch.zeros(9, 6, 4), lengths, {1}),
            (torch.zeros(9, 6), fields, {0, 1}),
            (torch.zeros(6, 9), torch.arange(6), {0, 1}),
            (torch.zeros(6, 9), torch.zeros(6), {0, 1}),
            (torch.zeros(6, 6), lengths, {0, 1}),
            (torch.zeros(6, 9), torch.tensor([1, 2]), {0, 1}),
        ):
            with self.subTest(shape=tuple(first.shape), beside=beside):
                inputs._told.clear()
                self.assertEqual(set(inputs._dims((first, beside), {})), expected)
                self.assertEqual(set(inputs._dims((), {"x": first, "y": beside})), expected)

    def test_lists_with_an_item_for_each_sample_are_cut(self):
        x, lengths, texts = torch.arange(18).reshape(6, 3), [3, 1, 2, 3, 1, 1], tuple("abcdef")
        args, kwargs = (x, lengths), {"more": {"texts": texts, "sizes": [2, 2]}, "shape": (3, 3)}
        found = inputs.Inputs(args, kwargs)
        pieces = found.cut([4, 2])
        for (piece, named), begin, end in ((pieces[0], 0, 4), (pieces[1], 4, 6)):
            self.assertTrue(torch.equal(piece[0], x[begin:end]))
            self.assertEqual(piece[1], lengths[begin:end])
            more = {"texts": texts[begin:end], "sizes": [2, 2]}
            self.assertEqual(named, {"more": more, "shape": (3, 3)})
        picked, named = found.pick([4, 0])
        self.assertEqual((picked[1], named["more"]["texts"]), ([1, 3], ("e", "a")))
        leaves, rebuild = found.flat(pieces[1])
        self.assertEqual(len(leaves), len(found.names))
        again, named = rebuild(leaves)
        self.assertEqual((again[1], named), (pieces[1][0][1], pieces[1][1]))

    def test_what_is_no_list_of_samples(self):
        x = torch.zeros(4, 3)
        for other in ((8, 8, 8, 8), [1, 2, 3], [None] * 4, [[1], [2], [3], [4]], "abcd"):
            with self.subTest(other=other):
                (first, _), _ = inputs.Inputs((x, other), {}).cut([2, 2])
                self.assertEqual(first[1], other)

    def test_lists_of_lengths_tell_where_the_batch_is(self):
        for shape, lengths, expected in (
            ((6, 9), [9, 3, 5, 1, 2, 4], {0}),
            ((9, 6), [9, 3, 5, 1, 2, 4], {1}),
            ((6, 9), [0.5] * 6, {0, 1}),
            ((6, 9), [1 << 80] * 6, {0, 1}),
        ):
            inputs._told.clear()
            self.assertEqual(set(inputs._dims((torch.zeros(shape), lengths), {})), expected)

    def test_trials_pack_no_sequence_longer_than_it_is(self):
        pack, x = torch.nn.utils.rnn.pack_padded_sequence, torch.randn(2, 3, 4)
        before = torch._VF._pack_padded_sequence
        for first in (True, False):
            with packing.checked(), packing.checked():
                longest = x.shape[1 if first else 0]
                lengths = torch.full((x.shape[0 if first else 1],), longest)
                packed = pack(x, lengths, batch_first=first)
                self.assertEqual(packed.data.shape, (6, 4))
                with self.assertRaises(ValueError):
                    pack(x, lengths + 1, batch_first=first)
        self.assertIs(torch._VF._pack_padded_sequence, before)

    def test_what_may_index_samples(self):
        x = torch.zeros(8, 3)
        for largest, expected in ((3, set()), (4, {1}), (5, {1}), (7, {1}), (8, set())):
            edges = torch.tensor([[0, largest], [1, 0]])
            self.assertEqual(batch(x, edges).indices(), expected, largest)

    def test_samples_lie_in_memory_as_they_did(self):
        """A linear layer copies a transposed batch and keeps the copy: so must a trial's."""
        for x in (
            torch.randn(7, 6, 4).transpose(0, 1),
            torch.randn(6, 3, 5, 4).to(memory_format=torch.channels_last),
            torch.randn(6, 1, 4),
            torch.randn(6, 4)[:, ::2],
        ):
            ((picked,), _) = batch(x).pick([4, 1])
            self.assertTrue(torch.equal(picked, x[[4, 1]]))
            order = lambda t: sorted(range(t.dim()), key=lambda d: -t.stride(d))
            self.assertEqual(order(picked), order(x))
        ((mask,), _) = batch(torch.randn(6, 1, 4).expand(6, 5, 4)).pick([0, 3])
        self.assertTrue(mask.is_contiguous())

    def test_positions_are_no_indices(self):
        batch(torch.zeros(8, 3), torch.arange(8).reshape(1, 8)).refuse_indices()
        with self.assertRaises(inputs.Cannot):
            batch(torch.zeros(8, 3), torch.tensor([[0, 7, 2]])).refuse_indices()

    def test_even_micro_batches(self):
        self.assertEqual(inputs.even(10, 4), [4, 3, 3])
        self.assertEqual(inputs.even(8, 8), [8])
        self.assertEqual(inputs.even(9, 2), [2, 2, 2, 2, 1])

    def test_longer_samples_go_fewer(self):
        share = microbatch.Share(8, keep=2, elements=100)
        self.assertEqual(share.now(batch(torch.zeros(16, 100))), (8, 2))
        self.assertEqual(share.now(batch(torch.zeros(16, 200))), (4, 2))
        self.assertEqual(share.now(batch(torch.zeros(16, 1700))), (1, 0))

    def test_joined_in_order(self):
        whole = torch.arange(12.0).reshape(6, 2)
        joined = Joined(0, 6)
        for part in whole.split([2, 4]):
            joined.add(part, len(part))
        self.assertTrue(torch.equal(joined.result(), whole))
        apart = Joined(0, 3, interleaved=True)  # two moments of three samples
        moments = torch.arange(6.0).reshape(2, 3)
        for part in moments.split([1, 2], 1):
            apart.add(part.flatten(), part.shape[1])
        self.assertTrue(torch.equal(apart.result(), moments.flatten()))


class Losses(unittest.TestCase):
    def rules(self):
        by_rows = losses.Rule("rows", lambda leaves: float(leaves[0]))
        by_tokens = losses.Rule("tokens", lambda leaves: float(leaves[1]))
        return by_rows, by_tokens

    def test_the_better_rule_survives_alone(self):
        """Both are within the tolerance; one is a hundred times closer."""
        by_rows, by_tokens = self.rules()
        pieces, apart = [(1, 1), (1, 2)], [3.0, 3.003]
        together = (3.0 + 2 * 3.003) / 3
        found = losses.survivors([by_rows, by_tokens], pieces, apart, together, 1e-3)
        self.assertEqual([r.name for r in found], ["tokens"])

    def test_rounding_rules_nothing_out(self):
        by_rows, by_tokens = self.rules()
        pieces, apart = [(1, 1), (1, 2)], [3.0, 3.000006]
        together = (3.0 + 2 * 3.000006) / 3  # by tokens; by rows it is off by less than rounding
        found = losses.survivors([by_rows, by_tokens], pieces, apart, together, 1e-3)
        self.assertEqual(len(found), 2)

    def test_far_off_is_ruled_out(self):
        by_rows, _ = self.rules()
        self.assertEqual(losses.survivors([by_rows], [(1, 1), (1, 1)], [1.0, 2.0], 1.6, 1e-3), [])

    def test_shares(self):
        by_rows, by_tokens = self.rules()
        total = losses.Rule("sum", lambda leaves: 1.0, mean=False)
        self.assertEqual(by_rows.shares([(1, 0), (3, 0)]), [0.25, 0.75])
        self.assertEqual(total.shares([(1, 0), (3, 0)]), [1.0, 1.0])
        self.assertTrue(losses.agree([by_rows, by_tokens], [(1, 2), (2, 4)]))
        self.assertFalse(losses.agree([by_rows, by_tokens], [(1, 2), (2, 5)]))

    def test_what_rows_end_with_is_padding(self):
        ids = torch.tensor([[5, 6, 7, 8, 9, 4], [5, 6, 3, 3, 3, 3], [1, 3, 9, 9, 2, 3]])
        rules = {r.name: r for r in losses.rules(batch(ids), set()) if r.guessed}
        ends = [r for name, r in rules.items() if "rows end with" in name]
        pieces = [(ids[:1],), (ids[1:],)]
        shares = [[float(s) for s in rule.shares(pieces)] for rule in ends]
        self.assertEqual(shares, [[6 / 12, 6 / 12], [5 / 9, 4 / 9]])
        # Two words that are the same by chance are none, nor is what one row alone shows a little.
        plain = torch.tensor([[5, 6, 7, 8, 4, 4], [1, 2, 3, 4, 5, 6]])
        shares = [[float(s) for s in r.shares([(plain[:1],), (plain[1:],)])] for r in ends]
        self.assertEqual(shares, [[0.5, 0.5]] * 2)

    def test_a_guess_gives_way(self):
        by_rows, by_tokens = self.rules()
        guess = losses.Rule("guess", by_tokens.weigh, guessed=True)
        pieces = [(1, 2), (2, 5)]
        self.assertEqual(losses.decided([by_rows, guess], pieces), [by_rows])
        self.assertEqual(losses.decided([by_rows, by_tokens], pieces), [])
        self.assertEqual(losses.decided([guess], pieces), [guess])
        self.assertEqual(losses.decided([], pieces), [])

    def test_weights_that_sum_to_nothing(self):
        """A rule that divides by zero explains nothing, wherever it stands."""
        by_rows, _ = self.rules()
        zero = losses.Rule("zero", lambda leaves: torch.tensor(0.0))
        found = losses.survivors([zero, by_rows], [(1, 1), (1, 1)], [1.0, 2.0], 1.5, 1e-3)
        self.assertEqual(found, [by_rows])

    def test_nothing_counts(self):
        rule = losses.Rule("t", lambda leaves: torch.tensor(float(leaves[0])))
        shares = rule.shares_to_use([(0,), (4,)])
        self.assertIsNone(shares[0])
        self.assertEqual(float(shares[1]), 1.0)
        nothing = losses.weighted(torch.tensor(float("nan")), None)
        self.assertEqual(float(nothing), 0.0)


class Outputs(unittest.TestCase):
    def test_full_precision_is_compared_closely(self):
        a = torch.ones(4)
        self.assertTrue(outputs.close(a * 1.0005, a))
        self.assertFalse(outputs.close(a * 1.005, a))
        self.assertTrue(outputs.close((a * 1.01).bfloat16(), a.bfloat16()))
        self.assertFalse(outputs.close((a * 1.1).bfloat16(), a.bfloat16()))

    def test_the_size_of_rounding(self):
        self.assertAlmostEqual(outputs.apart(torch.tensor([2.002]), torch.tensor([2.0])), 1e-3, 6)
        found = outputs.judge(1, "x", torch.ones(1, 2), torch.ones(1, 2), 1.0001 * torch.ones(2, 2))
        self.assertEqual((found.kind, found.dim), (outputs.ROWS, 0))
        self.assertAlmostEqual(found.rounding, 1e-4, 6)


class Gradients(unittest.TestCase):
    def test_a_gradient_of_its_own(self):
        base = torch.arange(6.0)
        whole, taken = torch.arange(4.0), set()
        self.assertIs(accumulate._own(whole, taken), whole)
        again = accumulate._own(whole, taken)
        self.assertNotEqual(again.data_ptr(), whole.data_ptr(), "two variables, one tensor")
        view = accumulate._own(base[2:4], set())
        self.assertNotEqual(view.data_ptr(), base[2:4].data_ptr(), "a part of another tensor")
        one = accumulate._own(torch.ones(()).expand(3), set())
        self.assertEqual(one.untyped_storage().nbytes(), 12, "one number for all elements")

    def test_the_scale_is_never_one_that_spoils(self):
        scale = accumulate.Scale()
        for bad in (0.0, float("inf"), float("nan")):
            scale.remember(torch.tensor(bad))
            self.assertEqual(float(scale.last), 1.0)
        scale.remember(torch.tensor(1024.0))
        self.assertEqual(float(scale.last), 1024.0)


class Choosing(unittest.TestCase):
    def test_the_budget(self):
        half = means.Means(lambda *a, **k: None, set(), factor=0.5)
        self.assertAlmostEqual(half.budget(1 << 40), 0.5 * room.SAFETY * (1 << 40))
        self.assertAlmostEqual(half.budget(1000), 450)  # a small card is more scattered
        self.assertAlmostEqual(half.budget(800 << 20), 0.5 * (736 << 20))
        self.assertLess(means.Means(lambda *a, **k: None, set()).budget(1000), 1000)

    def test_calls_that_wait_together(self):
        a, b = case(choice(100, 60, 1)), case(choice(50, 10, 1))
        self.assertEqual(search.together({a: 1}, lambda c: c.choice), 100)
        self.assertEqual(search.together({a: 2, b: 1}, lambda c: c.choice), 60 + 60 + 10 + 40)

    def test_equal_to_the_bit_is_worth_something(self):
        split = choice(50, 10, 1.0, share=microbatch.Share(2), pieces=4)
        self.assertFalse(split.bitwise)
        self.assertGreater(split.price, choice(50, 10, 1.04).price)
        self.assertLess(split.price, choice(50, 10, 1.5).price)

    def test_the_fattest_parts_first(self):
        parts = [Part(n, torch.nn.Identity(), s, 1) for n, s in (("a", 10), ("b", 40), ("c", 20))]
        what = cost.Cost(0, 80, 0, 100, 0, 1e-3, 1, 1, False, False, [parts], 0, 0, 0)
        found = list(choices._some_parts(8, what, 0, parts))
        self.assertEqual([{p.name for p in c.checkpoint} for c in found][:2], [{"b"}, {"b", "c"}])
        for few, more in itertools.permutations(found, 2):
            if set(few.checkpoint) < set(more.checkpoint):
                self.assertGreater(few.stays, more.stays)
                self.assertLess(few.seconds, more.seconds)

    def test_a_line_through_two_measurements(self):
        self.assertEqual(cost._line(2, 30, 4, 50), (10.0, 10.0))
        self.assertEqual(cost._line(2, 50, 4, 40), (50.0, 0.0), "less for more is noise")
        self.assertEqual(cost._at_least((10.0, 5.0), 8.0, 4, 50.0), (18.0, 8.0))
        self.assertEqual(cost._at_least((10.0, 9.0), 8.0, 4, 50.0), (10.0, 9.0))

    def test_the_first_step_leaves_room_for_others(self):
        whole, blocks = choice(90, 80, 1), choice(60, 10, 2, twice=1.0, checkpoint=["a block"])
        split = choice(35, 5, 1.5, share=microbatch.Share(1))
        self.assertIs(search.frugal([whole, blocks, split], 100), blocks)
        self.assertIs(search.frugal([whole, blocks, split], 79), split)
        self.assertIs(search.frugal([whole, blocks, split], 1000), whole)

    def test_the_first_step_counts_unread_results_once(self):
        """Logits beside a loss are put together where they are read, of one call at a time."""
        eight = choice(60, 30, 1, share=microbatch.Share(4), pieces=8, results=29.0)
        least = choice(35, 30, 3, share=microbatch.Share(1), pieces=32, results=29.0)
        self.assertIs(search.frugal([eight, least], 90), eight)
        self.assertIs(search.frugal([eight, least], 59), least, "they may be read")
        kept = choice(60, 30, 1, share=microbatch.Share(4), pieces=8)
        self.assertIs(search.frugal([kept, least], 90), least)

    def test_the_first_step_sends_nothing_to_the_host_where_blocks_leave_room(self):
        """Pinning as many pages as a whole batch saves took minutes."""
        whole, blocks = choice(200, 150, 1), choice(60, 10, 2, twice=1.0, checkpoint=["a block"])
        away = choice(20, 5, 3, offload=95.0)
        for of in (
            lambda free: search.frugal([whole, blocks, away], free, spacious=True),
            lambda free: search.equal_for_first_step([whole, blocks, away], free, "differs"),
        ):
            self.assertIs(of(72), blocks)  # with what stays of one more call
            self.assertIs(of(69), away)


class WhatIsLeftOver(unittest.TestCase):
    """After a step with the first choice, on a card of 1000 bytes."""

    def taken(self, needs, kind):
        chief = governor.Governor(lambda *a, **k: None, set())
        module = torch.nn.Linear(1, 1)
        now = choice(500, 400, 2, kind="blocks of 17", checkpoint=["a", "b"])
        other = choice(needs, 400, 1, kind=kind, checkpoint=["a"])
        one = Case(lambda: module, "m", now, [choice(2000, 900, 0.5), now, other])
        one.settled = True
        around = types.SimpleNamespace(is_card=True, limit=1000, kept=lambda: 500)
        step = types.SimpleNamespace(around=around, predicted=lambda: 500)
        chief.settling.step = mock.Mock()
        known = forecast.Forecast()
        known.read(500, 500)
        with mock.patch.object(chief.cases.checkpointing, "use"):
            chief.settling._loosen({one: 1}, step, known, 900, 0)
        return one.choice is other

    def test_another_kind_leaves_more(self):
        """Nobody has seen how the allocator lays it out: a ViT ran out by that."""
        self.assertTrue(self.taken(890, "blocks of 17"))
        self.assertFalse(self.taken(910, "blocks of 17"))
        self.assertFalse(self.taken(890, "blocks of 5"))
        self.assertTrue(self.taken(850, "blocks of 5"))


class WhatRanThrough(unittest.TestCase):
    """After the first step, where a training amplifies rounding."""

    def keeps(self, now, taken, amplifies, peak=50, is_card=True, varies=False, half=False):
        chief = governor.Governor(lambda *a, **k: None, set())
        chief.settling.varies = varies
        one = case(now, taken)
        one.amplifies, one.half = amplifies, half
        around = types.SimpleNamespace(is_card=is_card, limit=100)
        step = types.SimpleNamespace(around=around, peak_of_passes=lambda: peak)
        return chief.settling._ran_equal({one: 1}, {one: taken}, step)

    def test_stays_unless_the_other_is_as_good(self):
        away, twice = choice(60, 5, 9, offload=40), choice(40, 9, 2, checkpoint=[object()])
        pieces = choice(20, 2, 1, share=object())
        why = "several optimizers answer each other"
        self.assertTrue(self.keeps(away, pieces, why))
        self.assertFalse(self.keeps(away, twice, why))
        self.assertTrue(self.keeps(away, twice, search.AGAIN))
        self.assertFalse(self.keeps(twice, twice, search.AGAIN))
        self.assertFalse(self.keeps(away, pieces, ""))
        self.assertFalse(self.keeps(pieces, away, why))
        self.assertTrue(self.keeps(away, pieces, why, peak=96))
        self.assertFalse(self.keeps(away, pieces, why, peak=98))
        self.assertFalse(self.keeps(away, pieces, "", half=True))
        # On a CPU there is no second try.
        self.assertTrue(self.keeps(twice, pieces, why, peak=89, is_card=False))
        self.assertFalse(self.keeps(twice, pieces, why, peak=91, is_card=False))
        self.assertFalse(self.keeps(twice, pieces, why, is_card=False, varies=True))


class Card:
    """A card that takes a fixed work space for each convolution."""

    is_card = True

    def __init__(self, space):
        self.space, self.peaks = space, []

    def wait(self):
        pass

    def held(self):
        return 0

    def start_peak(self):
        pass

    def peak(self):
        return self.space


class WorkSpaces(unittest.TestCase):
    def moments(self, model, x, space=10**9):
        return spaces.of(model, model.__call__, (x,), {}, Card(space))

    def test_convolutions_of_the_whole_batch(self):
        """In order, transposed ones too; statistics are as they were, and so is the batch."""
        model = torch.nn.Sequential(
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ConvTranspose2d(8, 8, 4, 2, 1, bias=False),
            torch.nn.Conv2d(8, 8, 3, padding="same"),
        )
        x, mean = torch.randn(4, 3, 16, 16), model[2].running_mean.clone()
        given = x.clone()
        found = self.moments(model, x)
        self.assertEqual([round(m.before, 3) for m in found], [0, 0.111, 0.556])
        self.assertTrue(all(0.9e9 < m.space <= 1e9 <= m.bytes + 1e6 for m in found), found)
        self.assertTrue(torch.equal(model[2].running_mean, mean))
        self.assertTrue(torch.equal(x, given))

    def test_nothing_to_know(self):
        self.assertEqual(self.moments(torch.nn.Linear(3, 3), torch.zeros(2, 3)), [])
        broken = torch.nn.Conv2d(3, 3, 3)
        self.assertEqual(self.moments(broken, torch.zeros(2, 4, 8, 8)), [])

    def test_what_lies_before_it_must_leave_room(self):
        kept, away = choice(100, 80, 1.0), choice(60, 10, 2.0, offload=70)
        pieces = choice(50, 20, 1.5, share=microbatch.Share(2))
        block = Part("a block", torch.nn.Linear(1, 1), saved=3, given=1)
        blocks = choice(70, 30, 1.3, checkpoint=[block])
        late, early = spaces.Moment(0.5, 70, 60), spaces.Moment(0.0, 90, 80)
        found = list(choices.with_spaces([kept, away, pieces, blocks], [late, early], 10))
        self.assertEqual([c.needs for c in found], [116, 98, 50, 128])
        self.assertEqual([c.stays for c in found], [80, 10, 20, 30])
        self.assertEqual(list(choices.with_spaces([kept], [], 10)), [kept])

    def test_room_is_worth_so_much(self):
        plain = [choice(100, 80, 1.0), choice(60, 10, 1.2, offload=1)]
        for seconds, amplifies, roomier in (
            (1.5, "", True),
            (1.7, "", False),
            (2.9, "GAN", True),
            (3.1, "GAN", False),
        ):
            roomy = [choice(180, 80, 1.0), choice(70, 10, seconds, offload=1)]
            taken = search.spacious(plain, roomy, 75, amplifies)
            self.assertIs(taken, roomy if roomier else plain, seconds)
        self.assertIs(search.spacious(plain, roomy, 65, "GAN"), plain)  # it does not fit
        limit = [choice(70, 10, search.WORTH * plain[1].price, offload=1)]
        for free, roomier in ((69, False), (70, True)):
            taken = search.spacious(plain, limit, free, "")
            self.assertIs(taken, limit if roomier else plain, free)

    def test_taken_by_chance(self):
        """What a library took because there was room is not part of what a step needs."""
        chief = governor.Governor(lambda *a, **k: None, set())
        for optional, peak, expected in ((0, 190, 180), (60, 190, 120), (200, 190, 100)):
            one = case(choice(100, 50, 1.0))
            one.optional = optional
            step = types.SimpleNamespace(
                around=types.SimpleNamespace(is_card=True),
                predicted=lambda: 100,
                peak_of_passes=lambda peak=peak: peak,
                held_before=10,
                outside=0,
                kinds=lambda: "",
            )
            self.assertEqual(chief.settling._read({one: 1}, step).seen, [(100, expected)])


class Rounding(unittest.TestCase):
    def test_size(self):
        torch.manual_seed(0)
        x = torch.randn(8, 6)
        sums = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

        class Mean(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = sums

            def forward(self, x):
                return self.inner(x).mean()

        for model in (sums, Mean()):
            size = rounding.of_pieces(model, model.__call__, batch(x))
            self.assertTrue(0 < size < 1e-5, size)
            self.assertIn("differed by", rounding.words(size))
        self.assertEqual(rounding.words(None), "")
        self.assertIsNone(rounding.of_pieces(sums, lambda x: 1 / 0, batch(x)))


class WhatChoicesCost(unittest.TestCase):
    """Known answers: bytes and seconds of each kind of choice."""

    def cost(self, grains=(), **more):
        values = {
            "saved_fixed": 10.0,
            "saved_row": 80.0,
            "peak_fixed": 20.0,
            "peak_row": 100.0,
            "time_fixed": 0.5,
            "time_row": 1.0,
            "output_row": 4.0,
            "elements_row": 2.0,
            "half": False,
            "has_loss": True,
            "grains": list(grains),
            "away_fixed": 5.0,
            "away_row": 30.0,
            "travel": 1e-9,
        }
        values.update(more)
        return cost.Cost(**values)

    def test_a_loss_outside_of_the_module(self):
        self.assertEqual(choices.extra(self.cost(), 8), 0)
        self.assertEqual(choices.extra(self.cost(has_loss=False), 8), 8 * 2 * 8)
        self.assertEqual(choices.extra(self.cost(has_loss=False, half=True), 8), 12 * 2 * 8)

    def test_seconds(self):
        """A forward pass is a third of a step; a piece costs 4 % of it at the least, and takes its
        least time however small it is.
        """
        seconds = lambda *a, **k: choices._choice("x", 0, 0, *a, **k).seconds
        self.assertAlmostEqual(seconds(0.0, self.cost(), 8), 8.5)
        self.assertAlmostEqual(seconds(1.0, self.cost(), 8), 8.5 * 4 / 3)
        self.assertAlmostEqual(seconds(0.0, self.cost(), 8, pieces=4), 8 + 4 * 0.5)
        self.assertAlmostEqual(seconds(0.0, self.cost(time_fixed=0.0), 8, pieces=4), 8 + 4 * 0.32)
        slow = self.cost(time_fixed=0.0, floor=3.0)
        self.assertAlmostEqual(seconds(0.0, slow, 8), 8 + 0.32)
        self.assertAlmostEqual(seconds(0.0, slow, 8, pieces=2), 8 + 2 * 0.32)
        self.assertAlmostEqual(seconds(0.0, slow, 8, pieces=4), 12 + 4 * 0.32)

    def test_travel_at_the_slower_of_two_speeds(self):
        seconds = lambda travel: (
            choices._choice("x", 0, 0, 0.0, self.cost(travel=travel), 8, offload=16e9).seconds
        )
        self.assertAlmostEqual(seconds(0.0), 8.5 + 4)  # 8 GB a second, there and back
        self.assertAlmostEqual(seconds(1e-9), 8.5 + 16)

    def test_the_fastest_of_several_runs(self):
        """Others on the machine add time; the first run also chooses algorithms."""
        for taken, fastest, runs in (
            ([0.2, 0.09, 0.08, 0.03, 0.07, 0.05], 0.03, 6),
            ([0.2, 0.3, 0.25, 0.01], 0.25, 3),  # half a second was spent
            ([0.7], 0.7, 1),
        ):
            left, clock = list(taken), [0.0]

            def run():
                clock[0] += left.pop(0)

            around = types.SimpleNamespace(wait=lambda: None)
            with mock.patch.object(speed.time, "perf_counter", lambda: clock[0]):
                self.assertAlmostEqual(speed._fastest(around, run), fastest)
            self.assertEqual(len(taken) - len(left), runs)

    def test_as_it_is_comes_first(self):
        first = next(choices.all_of(batch(torch.zeros(8, 3)), None, self.cost(), False))
        self.assertEqual((first.needs, first.stays), (20 + 800, 10 + 640 + 32))
        self.assertEqual(first.remedies(), [])

    def test_the_whole_call(self):
        found = list(choices.all_of(batch(torch.zeros(8, 3)), None, self.cost(), False))
        self.assertEqual([c.remedies() for c in found], [[], ["checkpointing"]])
        self.assertEqual((found[1].needs, found[1].stays), (20 + 800 + 32, 32))
        never = self.cost(recomputable=False)
        self.assertEqual(len(list(choices.all_of(batch(torch.zeros(8, 3)), None, never, False))), 1)

    def test_the_moment_of_a_recompute(self):
        parts = [Part(n, torch.nn.Identity(), s, 5) for n, s in (("a", 30), ("b", 40))]
        what = self.cost([parts])
        # 10 are saved outside of parts; 100 - 80 - 8 beside what is saved
        self.assertEqual(choices._at_recompute(what, parts, {0}), 10 + 30 + 12)
        self.assertEqual(choices._at_recompute(what, parts, {1}), 10 + 30 + 40 + 12)
        self.assertEqual(choices._at_recompute(what, parts, {0, 1}), 10 + 5 + 40 + 12)

    def test_numbers_of_pieces(self):
        self.assertEqual(choices._counts(1), [])
        self.assertEqual(choices._counts(2), [2])
        self.assertEqual(choices._counts(7), [2, 3, 4, 5, 6, 7])
        self.assertEqual(choices._counts(20)[-2:], [16, 20])
        self.assertEqual(choices._counts(256)[-1], 256)
        self.assertEqual(choices._counts(300)[-1], 256)
        self.assertEqual(choices._counts(200)[-2:], [192, 200])

    def test_pieces_that_wait_keep_their_graphs(self):
        """Pieces whose backward pass comes later keep their nodes twice; others keep none."""
        what = self.cost(graph=7.0)
        rows = batch(torch.zeros(8, 3))
        waits = list(choices._pieces(rows, False, what, 0, 100, 80, ()))
        none = [c for c in waits if c.pieces == 4 and c.share.keep == 0][0]
        self.assertEqual(none.needs, 20 + 100 * 2 + 32 + 2 * 3 * 7)
        self.assertEqual(none.stays, 32 + 10 + 2 * 3 * 7)
        self.assertEqual(none.twice, 1.0)
        half = [c for c in waits if c.pieces == 4 and c.share.keep == 2][0]
        self.assertEqual(half.twice, 0.5)
        self.assertEqual(half.stays, none.stays + 80 * 2 * 2)
        at_once = [c for c in choices._pieces(rows, True, what, 0, 100, 80, ()) if c.pieces == 4]
        self.assertEqual({c.needs for c in at_once}, {20 + 200 + 32})
        self.assertEqual(at_once[0].twice, 0.0)

    def test_what_leaves_for_the_host(self):
        found = list(choices._offloaded(8, self.cost(), 3))
        away = [round(c.offload) for c in found]
        self.assertEqual(away, [64 * tenth for tenth in range(1, 10)] + [608])
        self.assertEqual([c.all_away for c in found], [False] * 9 + [True])
        self.assertEqual(found[4].needs, 5 + 240 + 3 + 320)
        self.assertAlmostEqual(found[9].needs, 5 + 240 + 3 + 32)
        self.assertAlmostEqual(found[9].stays, 32 + 10 + 32)

    def test_room_for_work_spaces(self):
        """A tenth of a work space must be free besides: it has to lie in one piece."""
        plain = choice(100, 60, 1)
        moments = [spaces.Moment(0.5, 200, 100)]
        (wide,) = choices.with_spaces([plain], moments, 8)
        self.assertEqual(wide.needs, 30 + 200 + 10)
        (same,) = choices.with_spaces([choice(900, 60, 1)], moments, 8)
        self.assertEqual(same.needs, 900)
        split = choice(100, 60, 1, share=microbatch.Share(2))
        self.assertIs(next(choices.with_spaces([split], moments, 8)), split)
        self.assertIs(next(choices.with_spaces([plain], [], 8)), plain)
        whole = choice(50, 5, 1, whole=True)  # keeps while it is recomputed what the call keeps
        self.assertEqual(list(choices.with_spaces([plain, whole], moments, 8))[1].needs, 240)

    def test_coarser_results_are_worth_less(self):
        split = choice(50, 10, 1.0, share=microbatch.Share(2))
        coarse = choice(50, 10, 1.0, share=microbatch.Share(2), coarse=True)
        self.assertGreater(coarse.price, 1.2 * split.price)
        self.assertLess(coarse.price, 2.0)


class Sizes(unittest.TestCase):
    def test_words(self):
        for count, expected in (
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1KiB"),
            (1536, "1.5KiB"),
            (-2 << 20, "-2MiB"),
            ((1 << 20) - 1, "1MiB"),  # never 1024KiB
            ((1 << 30) - 1, "1GiB"),
            (5 << 50, "5PiB"),
            (2048 << 50, "2048PiB"),
        ):
            self.assertEqual(room.words(count), expected)

    def test_state_that_is_still_to_come(self):
        weight = torch.nn.Parameter(torch.zeros(10))
        for make, copies in (
            (lambda p: torch.optim.SGD(p, lr=1), 0),
            (lambda p: torch.optim.SGD(p, lr=1, momentum=0.9), 1),
            (lambda p: torch.optim.Adam(p), 2),
            (lambda p: torch.optim.Adam(p, amsgrad=True), 3),
            (lambda p: torch.optim.Adagrad(p), 1),
            (lambda p: torch.optim.RMSprop(p), 1),
            (lambda p: torch.optim.RMSprop(p, momentum=0.9), 2),
            (lambda p: torch.optim.RMSprop(p, centered=True), 2),
            (lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True), 3),
        ):
            optimizer = make([weight])
            self.assertEqual(room._copies(optimizer, optimizer.param_groups[0]), copies, optimizer)
            expected = 0 if optimizer.state.get(weight) else copies * 40
            self.assertEqual(room.state_of(optimizer), expected, optimizer)
        frozen = torch.nn.Parameter(torch.zeros(10), requires_grad=False)
        self.assertEqual(room.state_of(torch.optim.Adam([frozen])), 0)

    def host(self, job, own, ranks, limit=1000):
        """The limit of host memory where a job of so many ranks holds something already."""
        with contextlib.ExitStack() as patched:
            for name, value in (("_of_cgroup", job), ("_ranks_here", ranks)):
                patched.enter_context(mock.patch.object(room, name, lambda value=value: value))
            patched.enter_context(mock.patch.object(room, "give_back_at_once", lambda: None))
            patched.enter_context(mock.patch.object(room.HostRoom, "held", lambda self: own))
            return room.HostRoom(limit).limit

    def test_ranks_share_the_host(self):
        """Pages of libraries count, from a twentieth to a fifth of the limit; a fifth where nobody
        knows. What the others hold is theirs, but half of an equal share is always planned with.
        """
        self.assertEqual(self.host(None, 100, 1), 800)
        self.assertEqual(self.host(None, 100, 2), 400)
        self.assertEqual(self.host({"held": 100, "mapped": 100}, 100, 1), 900)
        self.assertEqual(self.host({"held": 100, "mapped": 10}, 100, 1), 950)
        self.assertEqual(self.host({"held": 100, "mapped": 700}, 100, 1), 800)
        self.assertEqual(self.host({"held": 300, "mapped": 100}, 100, 2), 100 + 300)
        self.assertEqual(self.host({"held": 880, "mapped": 100}, 100, 2), 225)

    def test_a_twentieth_of_a_wall_stays_free(self):
        """For fragmentation and what was not foreseen: 5 to 8 GiB of 100."""
        free = (100 << 30) - means.Means(lambda *a, **k: None, set()).budget(100 << 30)
        self.assertTrue(5 << 30 < free < 8 << 30, free)


class HalfPrecision(unittest.TestCase):
    def test_each_device_has_a_switch_of_its_own(self):
        """Pieces in half precision are told, and cost more, on a CPU as on a card."""
        model = torch.nn.Linear(2, 2)
        self.assertFalse(traits.is_half(model))
        self.assertTrue(traits.is_half(torch.nn.Linear(2, 2, dtype=torch.bfloat16)))
        with torch.autocast("cpu", torch.bfloat16):
            self.assertTrue(traits.is_half(model))
            self.assertEqual(outputs._tolerance(torch.zeros(1)), 3e-2)
        found = []
        whole, cut = choice(8, 8, 1.0), choice(4, 4, 1.0, share=microbatch.Share(1))
        plan = types.SimpleNamespace(equivalence="exact")
        for half, taken, told in ((True, cut, True), (False, cut, False), (True, whole, False)):
            one = Case(lambda: model, "m", taken, [whole, cut], plan=plan, half=half)
            chief = means.Means(lambda *_, **fields: found.append(fields), set())
            telling.tell_choice(chief, one, 8, 8)
            self.assertEqual(found[-1].get("amplifies") == telling.HALF, told)

    def test_results_in_tf32_are_not_called_exact(self):
        """Pieces on a card that computes in TF32, and algorithms that cuDNN finds by trying."""
        convolutions, linear = torch.nn.Conv2d(2, 2, 1), torch.nn.Linear(2, 2)
        self.assertEqual(traits.precision(convolutions), "")  # a CPU has none
        found = []
        say = means.Means(lambda *_, **fields: found.append(fields), set())
        whole, cut = choice(8, 8, 1.0), choice(4, 4, 1.0, share=microbatch.Share(1))
        plan = types.SimpleNamespace(equivalence="exact")
        cudnn, capability = torch.backends.cudnn, "torch.cuda.get_device_capability"
        with mock.patch.object(traits, "is_on_card", return_value=True):
            with mock.patch(capability, return_value=(7, 0)):
                self.assertEqual(traits.precision(convolutions), "")
            with mock.patch(capability, return_value=(9, 0)):
                coarse = traits.precision(convolutions)
                self.assertIn("TF32", coarse)
                self.assertEqual(traits.precision(linear), "")
                with cudnn.flags(allow_tf32=False):
                    self.assertEqual(traits.precision(convolutions), "")
            for taken, told in ((cut, True), (whole, False)):
                one = Case(lambda: linear, "m", taken, [whole, cut], plan=plan, precision=coarse)
                telling.tell_choice(say, one, 8, 8)
                self.assertEqual("TF32" in found[-1].get("rounds", ""), told)
            for tries, module in ((False, convolutions), (True, convolutions), (True, linear)):
                found.clear()
                with cudnn.flags(enabled=True, benchmark=tries):
                    telling.tell_algorithms(say.say, module, coarse)
                self.assertEqual(bool(found), tries and module is convolutions)


if __name__ == "__main__":
    unittest.main()


class Company(unittest.TestCase):
    """Calls that wait for one backward pass together."""

    def test_more_than_ever(self):
        a, b, known = case(choice(9, 9, 1)), case(choice(9, 9, 1)), Companies()
        self.assertTrue(known.is_new({a: 1}))
        known.saw([{a: 1}, {a: 2}, {b: 1}])
        for counts, new in (({a: 1}, 0), ({a: 2}, 0), ({a: 3}, 1), ({b: 1}, 0), ({a: 1, b: 1}, 1)):
            self.assertEqual(known.is_new(counts), bool(new), counts)
        known.saw([{a: 2, b: 1}])
        self.assertEqual(known.known, [{a: 2, b: 1}], "smaller ones are within it")
        known.forget_gone()
        self.assertEqual(known.known, [], "their modules are gone")

    def test_many_companies_are_not_kept(self):
        known = Companies()
        for _ in range(1000):
            known.saw([{case(choice(9, 9, 1)): 1}])
        self.assertLess(len(known.known), 100)
