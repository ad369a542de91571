"""Known answers of what choices cost, at the edges where one is taken or left."""

import types
import unittest
from unittest import mock

import torch
from _memroom_probe.fit.batch import inputs
from _memroom_probe.fit.choose import choices, governor, search
from _memroom_probe.fit.choose.case import Case
from _memroom_probe.fit.measure import cost
from _memroom_probe.fit.remedies import microbatch
from _memroom_probe.fit.remedies.checkpointing import Part


def costs(**more):
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
        "grains": [],
        "away_fixed": 5.0,
        "away_row": 30.0,
        "travel": 1e-9,
    }
    values.update(more)
    return cost.Cost(**values)


def parts(*saved):
    return [
        Part("part %d" % i, torch.nn.Identity(), size, 5, largest=1) for i, size in enumerate(saved)
    ]


ROWS = inputs.Inputs((torch.zeros(8, 3),), {})


class EveryChoice(unittest.TestCase):
    def all_of(self, accumulates=True, plan=True, offload=False, **more):
        how = types.SimpleNamespace(accumulates=accumulates, draws=None) if plan else None
        return list(choices.all_of(ROWS, how, costs(**more), offload))

    def test_the_whole_call_is_run_twice(self):
        (whole,) = [c for c in self.all_of(plan=False) if c.whole]
        self.assertEqual(whole.twice, 1.0)
        self.assertAlmostEqual(whole.seconds, 8.5 * 4 / 3)

    def test_pieces_are_joined_with_the_coarsest_parts_alone(self):
        """Of several ways to take a module apart, one is thought of with pieces."""
        grains = [parts(30, 40), parts(10, 20, 30), parts(5, 5, 10, 10)]
        found = self.all_of(grains=grains)
        joined = {len(c.checkpoint) for c in found if c.share is not None}
        self.assertEqual(joined, {0, 2})
        # 80 - (25 + 35) are saved a row, 100 - 60 + 40 at the peak
        (two,) = [c for c in found if c.pieces == 2 and len(c.checkpoint) == 2]
        self.assertEqual(two.needs, 20 + (100 - 60 + 40) * 4 + 32)
        self.assertAlmostEqual(two.seconds, (8 + 2 * 0.5) * 4 / 3)
        blocks = {c.kind for c in found if c.kind.startswith("blocks")}
        self.assertEqual(blocks, {"blocks of 2", "blocks of 3", "blocks of 4"})

    def test_pieces_need_a_way_back(self):
        """A loss inside of the module, or a call that can be run twice."""
        for accumulates, recomputable, split in (
            (True, True, True),
            (True, False, True),
            (False, True, True),
            (False, False, False),
        ):
            found = self.all_of(accumulates=accumulates, recomputable=recomputable)
            self.assertEqual(any(c.share for c in found), split, (accumulates, recomputable))
        self.assertFalse(any(c.share for c in self.all_of(plan=False)))

    def test_the_host_is_asked_for_last(self):
        self.assertFalse(any(c.offload for c in self.all_of()))
        found = self.all_of(offload=True)
        self.assertEqual(len([c for c in found if c.offload]), len(choices.AWAY))
        self.assertTrue(found[-1].all_away)

    def test_more_and_more_parts(self):
        found = [c for c in self.all_of(plan=False, grains=[parts(30, 40)]) if c.checkpoint]
        self.assertEqual([len(c.checkpoint) for c in found], [1, 2, 1])
        fattest, both, thinner = found
        self.assertEqual(fattest.checkpoint[0].saved, 40)
        self.assertEqual(thinner.checkpoint[0].saved, 30)
        self.assertEqual([c.twice for c in found], [40 / 80, 70 / 80, 30 / 80])
        self.assertEqual(both.stays, (80 - 60 + 4) * 8 + 10)
        # the loss, or a recompute: 10 outside of parts, and 12 beside what is saved
        self.assertEqual(fattest.needs, 20 + max(100 - 35, 10 + 30 + 40 + 12) * 8)
        self.assertEqual(thinner.needs, 20 + max(100 - 25, 10 + 30 + 12) * 8)


class WhereItIsTaken(unittest.TestCase):
    """Exactly at the free bytes a choice fits; a byte more does not."""

    def left(self, free, waiting=3, settled=False):
        chief = governor.Governor(lambda *a, **k: None, set())
        now = choices.Choice("now", 100, 50, seconds=1)
        less = choices.Choice("less", 60, 10, seconds=2)
        split = choices.Choice("split", 20, 1, seconds=1, share=microbatch.Share(1))
        case = Case(lambda: None, "m", now, [now, less, split])
        case.settled = settled
        step = types.SimpleNamespace(
            around=types.SimpleNamespace(held=lambda: 0), waiting=lambda c: waiting, marks=[]
        )
        chief.settling.step = step
        chief.means = types.SimpleNamespace(free=lambda around, held: free)
        with mock.patch.object(chief, "cases") as cases:
            chief._leave_room_for_as_many(case)
        if not cases.use.called:
            return "now"
        (taken,) = cases.use.call_args[0][0].values()
        return taken.words

    def test_room_for_as_many_calls_again(self):
        for free, expected in (
            (250, "now"),  # 100 and three times 50
            (249, "less"),  # 60 and three times 10
            (90, "less"),
            (89, "split"),
        ):
            self.assertEqual(self.left(free), expected, free)
        self.assertEqual(self.left(1, waiting=2), "now", "two calls tell nothing")
        self.assertEqual(self.left(1, settled=True), "now")

    def test_room_for_libraries(self):
        plain = [choices.Choice("p", 60, 10, seconds=1.0)]
        roomy = [choices.Choice("r", 70, 10, seconds=search.WORTH)]
        dearer = [choices.Choice("d", 70, 10, seconds=search.WORTH * 1.001)]
        split = [choices.Choice("s", 70, 10, seconds=0.1, share=microbatch.Share(1))]
        self.assertIs(search.spacious(plain, roomy, 70, ""), roomy)
        self.assertIs(search.spacious(plain, roomy, 69, ""), plain)
        self.assertIs(search.spacious(plain, dearer, 70, ""), plain)
        self.assertIs(search.spacious(plain, split, 70, ""), plain, "not equal to the bit")


class OnTheHost(unittest.TestCase):
    """The peak while what is saved waits in host memory, by a room that counts."""

    def line(self, fixed, row, late=0.0, space=lambda rows: 0):
        module, rows = torch.nn.Linear(3, 2), [0]

        def call(x):
            rows[0] = len(x)
            return module(x)

        room = types.SimpleNamespace(
            held=lambda: 1000,
            start_peak=lambda: None,
            wait=lambda: None,
            peak=lambda: 1000 + fixed + row * rows[0],
        )
        seen = types.SimpleNamespace(outputs=[8.0], late=late, saved=100)
        found = cost._away(module, call, ROWS, 2, 4, room, seen, space)
        self.assertGreaterEqual(found[1], 0)
        return found[0]

    def test_what_was_held_before_does_not_count(self):
        self.assertEqual(self.line(100, 10), (100.0, 10.0))

    def test_it_grows_by_what_comes_back_at_the_least(self):
        # (8 of outputs and twice 40) / 4 rows are 22 a row
        self.assertEqual(self.line(100, 10, late=40.0), (140 - 4 * 22, 22.0))

    def test_work_spaces_are_left_out(self):
        self.assertEqual(self.line(100, 10, space=lambda rows: 60), (40.0, 10.0))
        self.assertEqual(self.line(100, 10, space=lambda rows: 900), (25.0, 2.5), "a quarter stays")


if __name__ == "__main__":
    unittest.main()
