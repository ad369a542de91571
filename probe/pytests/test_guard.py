"""What hooks cost is counted whole, and what costs too much is given up, by a clock of our own."""

import unittest

from _memroom_probe import guard, link

MS = 1000000


class Clock(unittest.TestCase):
    def setUp(self):
        self.before = guard.ledger, guard.now, guard.used, set(guard._needed)
        self.wall = self.cpu = 0
        guard.now, guard.used = lambda: self.wall, lambda: self.cpu
        self.told, self.send = [], link.send
        link.send = lambda kind, fields: self.told.append((kind, fields))
        guard.ledger = guard.Ledger()
        guard.start()
        guard.spend(0, "first step")

    def tearDown(self):
        guard.ledger, guard.now, guard.used, needed = self.before
        link.send = self.send
        guard._needed.clear()
        guard._needed.update(needed)

    def work(self, ns):
        """The processor works for us."""
        self.wall += ns
        self.cpu += ns

    def waits(self, ns):
        """Somebody else has it."""
        self.wall += ns

    def spends(self, name, ns, **how):
        return guard.hook(name, **how)(lambda: self.work(ns) or "done")

    def told_parts(self):
        return [fields["part"] for kind, fields in self.told if kind == "given_up"]


class Governor(Clock):
    def test_what_costs_too_much_is_given_up(self):
        dear = self.spends("dear", 3 * MS, heavy=True)
        cheap = self.spends("cheap", MS // 100, heavy=True)
        done = 0
        for _ in range(1000):  # steps of 100 ms: 3 % for the one, 0.01 % for the other
            self.waits(100 * MS)
            cheap()
            done += dear() == "done"
        self.assertEqual(self.told_parts(), ["dear"])
        self.assertEqual(done, 34)  # the first after 50 ms of 10 s were spent twice
        self.assertEqual(cheap(), "done")
        share = self.told[0][1]["share"]
        self.assertAlmostEqual(share, 0.03, delta=0.002)

    def test_what_keeps_the_promise_goes_on(self):
        fair = self.spends("fair", 4 * MS, heavy=True)
        for _ in range(2000):
            self.waits(996 * MS)
            self.assertEqual(fair(), "done")
        self.assertEqual(self.told, [])

    def test_what_is_needed_is_done_less_often(self):
        needed = self.spends("needed", 3 * MS, heavy=True, needed=True)
        for _ in range(40):
            self.waits(100 * MS)
            self.assertEqual(needed(), "done")
        self.assertEqual((guard.ledger.ease, self.told[0][1]["eased"]), (2, True))

    def test_what_costs_much_once_is_not_given_up(self):
        """Its share is at most the whole, also where it began before the window."""
        for part in ("first", "second", "third"):
            once = self.spends(part, 20000 * MS, heavy=True)
            outer = guard.hook("around", heavy=True)(lambda once=once: once())
            outer()
            self.waits(100 * MS)
        self.assertEqual(self.told, [])
        again = self.spends("again", 1000 * MS, heavy=True)
        again()
        again()
        self.assertEqual((self.told_parts(), self.told[0][1]["share"]), (["again"], 1))

    def test_the_start_is_not_governed(self):
        guard.ledger.counting = False
        built = self.spends("built", 30 * MS, heavy=True)
        for _ in range(50):
            self.assertEqual(built(), "done")
        self.assertEqual(self.told, [])


class Account(Clock):
    def test_a_light_hook_that_takes_long_counts_whole_from_then_on(self):
        walk = self.spends("walk", 4 * MS)
        for _ in range(3):
            walk()
        self.assertEqual(guard.cost()[0], guard.LIGHT_NS + 8 * MS)

    def test_one_that_was_interrupted_does_not(self):
        light = guard.hook("light")(lambda: self.waits(20 * MS))
        for _ in range(3):
            light()
        self.assertEqual(guard.cost(), (guard.LIGHT_NS, 60 * MS))

    def test_a_hook_within_a_hook_counts_once(self):
        inner = self.spends("inner", 2 * MS, heavy=True)
        outer = guard.hook("outer", heavy=True)(lambda: (inner(), self.work(MS)))
        outer()
        self.assertEqual(guard.cost()[0], 3 * MS)
        self.assertEqual(guard.ledger.costs, {"inner": 2 * MS, "outer": MS})

    def test_calls_within_a_hook_count_once(self):
        inner = self.spends("inner", 2 * MS, heavy=True)
        due = lambda step: (inner(), self.work(step * MS))  # noqa: E731
        outer = guard.hook("outer", heavy=True)(
            lambda: (guard.within("due", due, 3), guard.wait(lambda: self.work(9 * MS)))
        )
        outer()
        self.assertEqual(guard.ledger.costs, {"inner": 2 * MS, "due": 3 * MS, "outer": 0})

    def test_looks_count_and_keep_the_promise(self):
        """The first looks are made whatever they take, further ones once there is time for them."""

        def carry_out():
            self.work(1100 * MS)
            guard.asked(1100 * MS)

        step = guard.hook("step", heavy=True, needed=True)(carry_out)
        for times in range(1, 3):
            self.assertTrue(guard.may_ask())
            step()
            self.assertEqual(guard.cost()[0], times * 1100 * MS)
        self.assertFalse(guard.may_ask())
        self.assertFalse(guard.may_ask())
        self.assertEqual(
            [(kind, told["part"]) for kind, told in self.told], [("given_up", "looks")]
        )
        self.waits(650000 * MS)
        self.assertFalse(guard.may_ask())  # 0.5 % of it is less than three looks
        self.waits(20000 * MS)
        self.assertTrue(guard.may_ask())
        self.assertEqual(guard.ledger.spent_ns, 0)


if __name__ == "__main__":
    unittest.main()
