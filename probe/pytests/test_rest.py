"""Hooks that rest: their places hold what was there before, and nobody else's is touched."""

import unittest

from _memroom_probe import compiled, guard
from _memroom_probe.watch import steps, torch_rest


class TestRest(unittest.TestCase):
    def setUp(self):
        self.table = {7: self.hook}
        self.before = compiled.in_use, list(torch_rest._places), steps.glance_ns
        del torch_rest._places[:]
        torch_rest.place(self.table, 7, self.hook, torch_rest.nothing)
        torch_rest.install(None)

    def tearDown(self):
        compiled.in_use, torch_rest._places[:], steps.glance_ns = self.before
        del compiled._waiting[:]

    hook = staticmethod(lambda *args: "hook")

    def test_aside_and_back(self):
        self.assertEqual(steps.glance_ns, guard.GLANCE_NS)
        torch_rest.aside()
        self.assertIs(self.table[7], torch_rest.nothing)
        self.assertIsNone(self.table[7](None, (), {}))
        torch_rest.back()
        self.assertIs(self.table[7], self.hook)

    def test_what_somebody_else_put_there_stays(self):
        other = object()
        self.table[7] = other
        torch_rest.aside()
        torch_rest.back()
        self.assertIs(self.table[7], other)
        torch_rest.place(self.table, 8, self.hook, torch_rest.nothing)
        torch_rest.aside()
        self.assertEqual(self.table, {7: other})

    def test_compiled_programs_see_the_same_hooks_all_along(self):
        torch_rest.aside()
        compiled._begins()
        self.assertIs(self.table[7], self.hook)
        self.assertEqual(steps.glance_ns, guard.GLANCES_NS)
        torch_rest.aside()
        self.assertIs(self.table[7], self.hook)


if __name__ == "__main__":
    unittest.main()
