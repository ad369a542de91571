"""What the first steps teach about predictions, and what follows from a request that failed."""

import os
import sys
import tempfile
import types
import unittest
from unittest import mock

from _memroom_probe.fit.calls import refers
from _memroom_probe.fit.choose import traits
from _memroom_probe.fit.choose.case import Case
from _memroom_probe.fit.choose.choices import Choice
from _memroom_probe.fit.choose.forecast import Forecast
from _memroom_probe.fit.choose.pace import Pace
from _memroom_probe.fit.choose.search import (
    AGAIN,
    cheaper,
    cheapest,
    equal_for_first_step,
    frugal,
    half_way,
    roomier,
)
from _memroom_probe.fit.remedies.microbatch import Share


def blocks(needs, seconds, kind="blocks of 4"):
    return Choice("blocks", needs, needs / 2, seconds=seconds, kind=kind, checkpoint=("a block",))


def pieces(needs, seconds):
    return Choice("pieces", needs, 0, seconds=seconds, kind="pieces", share=Share(1))


def case(choice, *candidates):
    return Case(lambda: None, "a module", choice, list(candidates))


class Readings(unittest.TestCase):
    def test_one_reading(self):
        """What was missing once is missing again, and more the further one goes."""
        known = Forecast(unseen=0.25)
        known.read(100, 110)
        self.assertEqual(known.room_for(110), 100)
        self.assertEqual(known.room_for(210), 180)
        self.assertEqual(known.room_for(60), 50)

    def test_two_readings(self):
        """The second one shows how fast it grows."""
        known = Forecast(unseen=0.25)
        known.read(100, 100)
        known.read(200, 220)
        self.assertAlmostEqual(known.room_for(340), 300)

    def test_readings_side_by_side_tell_no_growth(self):
        known = Forecast(unseen=0.2)
        known.read(100, 100)
        known.read(101, 111)
        self.assertAlmostEqual(known.room_for(221), 201)

    def test_a_wild_reading_is_bounded(self):
        """No more is taken to be missing than was predicted, byte for byte."""
        known = Forecast()
        known.read(100, 100)
        known.read(200, 600)
        self.assertAlmostEqual(known.room_for(700), 250)
        self.assertAlmostEqual(known.room_for(500), 100)

    def test_too_much_was_predicted(self):
        """A choice that needed less than predicted makes nobody bold about larger ones."""
        known = Forecast()
        known.read(100, 100)
        known.read(200, 150)
        self.assertEqual(known.room_for(300), 300)

    def test_a_peak_at_another_moment(self):
        """Less was taken than predicted: that counts for more of the same where it grew with what
        was predicted, and not where it stayed as it was.
        """
        for second, expected in ((160, 360), (120, 300), (90, 300)):
            known = Forecast()
            known.read(100, 100, 100, "offload")
            known.read(150, 150, 90, "blocks")
            known.read(200, 200, second, "offload")
            self.assertEqual(known.room_for_more(320 if second == 160 else 300), expected)

    def test_a_work_space_hides_what_was_taken(self):
        known = Forecast(unseen=0.25)
        known.read(100, 100)
        known.read(200, 200)
        self.assertEqual(known.room_for(250), 250)
        self.assertEqual(known.room_for(250, hidden=True), 200)
        known.read(210, 270)
        self.assertEqual(known.room_for(250, hidden=True), 190)  # that much is known at the least

    def test_more_of_the_kind_that_was_seen(self):
        """What one kind needed less than predicted is there for more of that kind."""
        known = Forecast(unseen=0.25)
        known.read(200, 200, 150)
        self.assertEqual(known.room_for(200), 200)
        self.assertEqual(known.room_for_more(200), 240)
        self.assertEqual(known.room_for_more(120), 170)
        self.assertEqual(known.room_for_more(240, alike=False), 232)
        self.assertEqual(known.room_for_more(180, alike=False), 180)
        known.read(300, 330, 330)
        self.assertAlmostEqual(known.room_for_more(460), 400)


class Paces(unittest.TestCase):
    def steps(self, *steps):
        pace = Pace()
        for time, flushes in steps:
            pace.note(time, flushes)
        return pace

    def test_the_first_step_with_a_choice_does_not_count(self):
        self.assertIsNone(self.steps((0, 0), (9, 0), (10, 0), (11, 0)).seconds())
        self.assertEqual(self.steps((0, 0), (9, 0), (10, 0), (12, 0), (15, 0)).seconds(), 2)

    def test_short_in_two_steps_on_end(self):
        self.assertTrue(self.steps((0, 4), (1, 5), (2, 7)).is_short())
        self.assertFalse(self.steps((0, 4), (1, 4), (2, 7)).is_short())
        self.assertFalse(self.steps((0, 4), (1, 5)).is_short())


class Ways(unittest.TestCase):
    def test_half_way_is_of_the_same_kind(self):
        small, middle, large = blocks(60, 3), blocks(150, 2), blocks(200, 1)
        other = blocks(125, 2, kind="offload")
        it = case(pieces(50, 9), small, middle, other, large)
        self.assertEqual(half_way({it: 1}, {it: large}), {it: small})
        near = case(pieces(110, 9), middle, other, large)
        self.assertEqual(half_way({near: 1}, {near: large}), {near: middle})
        self.assertIsNone(half_way({it: 1}, {it: small}))

    def test_half_way_to_what_changes_nothing(self):
        """Three calls of two modules wait together: one of them as it is would be too far."""
        cases = {}
        for _ in range(2):
            away = Choice("away", 60, 10, seconds=3.0, offload=50, kind="offload")
            some = Choice("some", 120, 100, seconds=1.5, checkpoint=("a block",), kind="blocks")
            cases[case(away, Choice("as it is", 300, 280, seconds=1.0), away, some)] = 3
        whole = {it: it.candidates[0] for it in cases}
        middle = half_way(cases, whole)
        self.assertEqual([c.seconds for c in middle.values()], [1.5, 1.5])

    def test_a_library_gets_its_work_space(self):
        """Where that stays equal to the bit and is not much slower."""
        tight, loose, slow = blocks(200, 1.0), blocks(150, 1.3), blocks(100, 3.0)
        it = case(tight, tight, loose, slow, pieces(10, 1.0))
        self.assertEqual(roomier({it: 1}, {it: tight}, 160), {it: loose})
        self.assertEqual(roomier({it: 1}, {it: tight}, 110), {it: tight})
        self.assertEqual(roomier({it: 1}, {it: tight}, 50), {it: tight})
        cut = pieces(180, 1.0)
        self.assertEqual(roomier({it: 1}, {it: cut}, 160), {it: cut})

    def test_room_is_made_with_more_of_the_same(self):
        """Another kind that is hardly faster is not taken: nobody has seen how wrong it is."""
        tight, more = blocks(200, 1.0), blocks(150, 1.12)
        other = blocks(149, 1.1, kind="finer blocks")
        it = case(tight, tight, other, more)
        self.assertEqual(roomier({it: 1}, {it: tight}, 160), {it: more})
        slow = blocks(150, 1.2)
        it = case(tight, tight, other, slow)
        self.assertEqual(roomier({it: 1}, {it: tight}, 160), {it: other})

    def test_what_is_left_over_is_used(self):
        now, same, whole = blocks(100, 2.0), blocks(140, 1.5), blocks(200, 1.0)
        other = blocks(120, 1.8, kind="finer blocks")
        it = case(now, whole, now, same, other, pieces(90, 0.5))
        self.assertEqual(cheaper({it: 1}, 100, 100), None)
        self.assertEqual(cheaper({it: 1}, 120, 100), {it: other})
        self.assertEqual(cheaper({it: 1}, 120, 140), {it: same})
        self.assertEqual(cheaper({it: 1}, 250, 250), {it: whole})
        self.assertEqual(cheaper({it: 2}, 200, 900), {it: other})  # of two calls 180 bytes
        near = case(now, now, blocks(101, 1.99))
        self.assertIsNone(cheaper({near: 1}, 900, 900))
        cut = case(pieces(90, 2.0), now, same, pieces(95, 1.0))
        self.assertEqual(cheaper({cut: 1}, 100, 100)[cut].words, "pieces")

    def test_first_step_leaves_room_for_work_spaces(self):
        quick, least = blocks(100, 1), blocks(50, 2)
        self.assertIs(frugal([quick, least], 300), quick)
        self.assertIs(frugal([quick, least], 300, spacious=True), least)


class NothingFits(unittest.TestCase):
    def test_the_last_bytes_count(self):
        """One piece more that is kept is faster, and was what made it run out again."""
        kept, least = pieces(104, 1.0), pieces(100, 1.5)
        it = case(least, Choice("as it is", 400, 300), kept, least)
        self.assertEqual(cheapest({it: 1}, 90), {it: least})
        self.assertEqual(cheapest({it: 1}, 110), {it: kept})


class FirstStepWhereRoundingGrows(unittest.TestCase):
    """What is equal to the bit is taken with less room to spare, and where gradients are
    differentiated again nothing that runs twice.
    """

    def choices(self):
        part = object()
        return [
            Choice("as it is", 100, 80),
            Choice("parts", 50, 10, checkpoint=[part], seconds=2),
            Choice("away", 60, 5, offload=75, seconds=9),
            Choice("pieces", 20, 2, share=object(), seconds=1),
        ]

    def test_needs_and_one_more_call_fit(self):
        take = lambda free, why: equal_for_first_step(self.choices(), free, why)
        self.assertEqual(take(60, "two optimizers").words, "parts")
        self.assertIsNone(take(59, "two optimizers"))
        self.assertIsNone(take(60, ""))

    def test_differentiated_again(self):
        self.assertEqual(equal_for_first_step(self.choices(), 65, AGAIN).words, "away")
        self.assertIsNone(equal_for_first_step(self.choices(), 64, AGAIN))
        only_parts = self.choices()[:2]
        self.assertEqual(equal_for_first_step(only_parts, 65, AGAIN).words, "parts")

    def test_script_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.py")
            with open(path, "w") as f:
                f.write("g = grad(y, x, create_graph = True)")
            main = types.SimpleNamespace(__file__=path)
            with mock.patch.dict(sys.modules, __main__=main):
                self.assertTrue(refers.script_says(r"create_graph\s*=\s*True"))
                self.assertFalse(refers.script_says("nothing of this kind"))
            with mock.patch.dict(sys.modules, __main__=types.SimpleNamespace()):
                self.assertFalse(refers.script_says("create_graph"))
            above = os.path.join(os.path.dirname(refers._OURS[:-1]), "train.py")
            main = types.SimpleNamespace(__file__=above)  # our own files lie below it
            with mock.patch.dict(sys.modules, __main__=main):
                self.assertFalse(refers.script_says("create_graph"))

    MODEL = """
import torch
class GPT(torch.nn.Module):
    def forward(self, x): %s
    @torch.no_grad()
    def generate(self, idx): return torch.multinomial(self(idx).softmax(-1), 1)
"""

    def draws(self, script, forward="return x"):
        """Whether a script beside a model that could generate is said to draw."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("train.py", "model.py")]
            for path, text in zip(paths, (script, self.MODEL % forward)):
                with open(path, "w") as f:
                    f.write(text)
            main, model = types.ModuleType("__main__"), types.ModuleType("model")
            main.__file__, model.__file__ = paths
            exec(self.MODEL % forward, vars(model))
            with mock.patch.dict(sys.modules, {"__main__": main, "model_of_this_test": model}):
                return refers.script_says(traits.DRAWS)

    def test_what_nobody_calls_does_not_run(self):
        trains = "ix = torch.randint(9, (4,))\nloss = model(ix)\n"
        self.assertFalse(self.draws(trains))
        self.assertTrue(self.draws(trains + "more = model.generate(ix)\n"))
        self.assertTrue(self.draws(trains, "return torch.multinomial(x.softmax(-1), 1)"))
        self.assertTrue(self.draws(trains + "a = torch.multinomial(logits.softmax(-1), 1)\n"))


if __name__ == "__main__":
    unittest.main()
