"""Hooks that rest: their places hold what was there before, and nobody else's is touched."""

import unittest

from _memroom_probe import compiled, guard
from _memroom_probe.watch import steps, torch_rest


class TestRest(unittest.TestCase):
    def setUp(self):
        self.table = {7: self.hook}
        self.before = compiled.compiler
        compiled.compiler = compiled.Compiler()
        self.loop = steps.Loop()
        self.rest = torch_rest.Rest(self.loop)
        self.rest.place(self.table, 7, self.hook, torch_rest.nothing)
        self.rest.install()

    def tearDown(self):
        compiled.compiler = self.before

    hook = staticmethod(lambda *args: "hook")

    def test_aside_and_back(self):
        self.assertEqual(self.loop.glance_ns, guard.GLANCE_NS)
        self.rest.aside()
        self.assertIs(self.table[7], torch_rest.nothing)
        self.assertIsNone(self.table[7](None, (), {}))
        self.rest.back()
        self.assertIs(self.table[7], self.hook)

    def test_what_somebody_else_put_there_stays(self):
        other = object()
        self.table[7] = other
        self.rest.aside()
        self.rest.back()
        self.assertIs(self.table[7], other)
        self.rest.place(self.table, 8, self.hook, torch_rest.nothing)
        self.rest.aside()
        self.assertEqual(self.table, {7: other})

    def test_compiled_programs_see_the_same_hooks_all_along(self):
        self.rest.aside()
        compiled._begins()
        self.assertIs(self.table[7], self.hook)
        self.assertEqual(self.loop.glance_ns, guard.GLANCES_NS)
        self.rest.aside()
        self.assertIs(self.table[7], self.hook)


if __name__ == "__main__":
    unittest.main()
