"""Rows of a program without a card: pages are read whenever the heap rises, with what is free."""

import unittest

from _memroom_probe.watch import host, steps


class TestHostRows(unittest.TestCase):
    def setUp(self):
        self.before = host.heap, host.memory
        self.heap, self.pages = 0, 0
        host.heap, host.memory = self.read_heap, self.read_pages

    def tearDown(self):
        host.heap, host.memory = self.before

    def read_heap(self):
        host.state.free = self.heap // 2
        return self.heap

    def read_pages(self):
        self.pages += 1 << 20
        return 2 * self.pages, self.pages

    def rows(self, count, rise):
        loop = steps.Loop()
        self.heap = 64 << 20
        for _ in range(count):
            self.heap += rise
            loop.step += 1
            loop._unread += 1
            loop._take(loop.ended_ns + 1000000, lambda device: steps.NOTHING, ())
        return loop._taken

    def test_pages_are_read_while_the_heap_rises(self):
        pages = [row[16] for row in self.rows(30, 1 << 20)]
        self.assertEqual(len(set(pages)), 30)

    def test_and_seldom_where_it_is_level(self):
        self.assertLessEqual(len({row[16] for row in self.rows(60, 0)}), steps.NEAR + 1)

    def test_free_bytes_stand_beside_the_heap(self):
        self.assertEqual([row[12] for row in self.rows(2, 2)], [(32 << 20) + 1, (32 << 20) + 2])

    def test_malloc_says_what_is_free(self):
        if host._mallinfo is None:
            self.skipTest("no glibc of 2.33 or later")
        host.state.free = 0
        self.before[0]()
        self.assertGreater(host.state.free, 0)


if __name__ == "__main__":
    unittest.main()
