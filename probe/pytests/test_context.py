"""The size of the CUDA context from recorded readings, on a card of one's own and a shared one."""

import unittest

from _memroom_probe.context import Card, Context

MIB, GIB = 1 << 20, 1 << 30
H200 = Card(total=150109880320, processors=132, threads=2048)
ADA = Card(total=48 * GIB, processors=142, threads=1536)
RTX3090 = Card(total=24 * GIB, processors=82, threads=1536)
TITAN_V = Card(total=12 * GIB, processors=80, threads=2048)
T4 = Card(total=15843721216, processors=40, threads=1024)


class TestContext(unittest.TestCase):
    def test_nvml_knows(self):
        context = Context(H200)
        self.assertEqual(context.size(9 * GIB, 60 * GIB, 8 * GIB), GIB)
        self.assertEqual(context.size(7 * GIB, 60 * GIB, 8 * GIB), 0)

    def test_alone_on_the_card(self):
        """It grows with the first work, then two readings agree."""
        context = Context(H200)
        sizes = [
            context.size(None, own * MIB + reserved * GIB, reserved * GIB)
            for own, reserved in [(619, 0), (740, 3), (751, 9), (751, 11)]
        ]
        self.assertEqual(sizes[:2], [H200.usual()] * 2)
        self.assertEqual(sizes[2:], [751 * MIB] * 2)

    def test_a_neighbour_starts(self):
        """The readings of the shared card that once became a context of 22523478016 bytes."""
        context = Context(H200)
        for rise in (22523478016, 22523478016, 41 * GIB, 41 * GIB):
            self.assertEqual(context.size(None, rise, 0), H200.usual())

    def test_a_neighbour_ends(self):
        """Less is in use than before we came: that says nothing about us."""
        context = Context(H200)
        for rise in (-30 * GIB, -30 * GIB, 3 * MIB, 3 * MIB):
            self.assertEqual(context.size(None, rise, 0), H200.usual())

    def test_ten_come_and_go(self):
        """Whatever others do, it stays what a card of this kind can take."""
        state = 12345
        for card in (H200, T4):
            context = Context(card)
            context.size(None, card.usual(), 0)
            context.size(None, card.usual(), 0)
            for _ in range(2000):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
                rise = (state % 40000 - 20000) * MIB
                for _ in range(2):
                    size = context.size(None, rise, 0)
                    self.assertTrue(card.least() <= size <= card.most(), size)
                    self.assertLess(size, card.total // 4)

    def test_a_reading_that_moves_keeps_the_last_one_that_agreed(self):
        context = Context(H200)
        for rise in (600 * MIB, 600 * MIB, 5 * GIB, 700 * MIB):
            size = context.size(None, rise, 0)
        self.assertEqual(size, 600 * MIB)

    def test_nothing_can_be_read(self):
        self.assertEqual(Context(T4).size(None, None, GIB), T4.usual())

    def test_kinds(self):
        """The bare contexts and the H200's with its libraries, as measured by others and by us."""
        for card, bare in ((H200, 619), (ADA, 426), (RTX3090, 256), (TITAN_V, 319)):
            self.assertTrue(card.least() < bare * MIB < card.usual(), card)
            self.assertLess(card.usual(), 2 * bare * MIB)
        self.assertTrue(750 * MIB <= H200.usual() <= 790 * MIB, H200.usual())


if __name__ == "__main__":
    unittest.main()
