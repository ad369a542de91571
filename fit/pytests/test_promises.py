"""Jobs that begin together do not count on the same host memory."""

import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch
import torch.nn as nn
from _memroom_probe.fit.choose import cases, means
from _memroom_probe.fit.choose.case import case_of
from _memroom_probe.fit.choose.choices import Choice
from _memroom_probe.fit.memory import promises, room
from card import Card

OTHER = """
import sys
sys.path.insert(0, sys.argv[1])
from _memroom_probe.fit.memory.promises import Promises
mine = Promises(sys.argv[2])
for line in sys.stdin:
    mine.kept() if line == "kept\\n" else mine.promise(int(line))
    print(mine.of_others(), flush=True)
"""


class Together(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.mine = promises.Promises(self.folder)

    def other(self):
        """Another process that promises what it is told; tell(x) gives what it sees of others."""
        root = os.path.dirname(os.path.dirname(os.path.abspath(promises.__file__)))
        where = os.path.dirname(os.path.dirname(root))
        process = subprocess.Popen(
            [sys.executable, "-c", OTHER, where, self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdin.close)

        def tell(text):
            process.stdin.write("%s\n" % text)
            process.stdin.flush()
            return int(process.stdout.readline())

        return process, tell

    def test_others_are_seen_until_the_memory_is_taken(self):
        _, first = self.other()
        _, second = self.other()
        self.mine.promise(7)
        self.assertEqual(first(100), 7)
        self.assertEqual(second(20), 107)
        self.assertEqual(self.mine.of_others(), 120)
        first("kept")
        self.assertEqual(self.mine.of_others(), 20)
        first(130)  # thirty more than it has
        self.assertEqual(self.mine.of_others(), 50)
        self.mine.kept()
        self.assertEqual(second(20), 30)

    def test_a_process_that_died_promises_nothing(self):
        process, tell = self.other()
        tell(100)
        process.kill()
        process.wait()
        self.assertEqual(self.mine.of_others(), 0)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_others_wrote_there_is_not_believed(self):
        with open(os.path.join(self.folder, str(os.getppid())), "w") as f:
            f.write("-5 or so")
        self.assertEqual(self.mine.of_others(), 0)
        link = self.folder + "-link"
        os.symlink(self.folder, link)
        self.addCleanup(os.unlink, link)
        _, tell = self.other()
        tell(100)
        self.assertEqual(promises.Promises(link).of_others(), 0)

    def test_what_may_be_sent_is_less_by_it(self):
        _, tell = self.other()
        tell(600)
        plenty = means.Means(lambda *_, **__: None, ["activation_offload"])
        with mock.patch.object(means, "promises", self.mine):
            with mock.patch.object(room, "host_free", return_value=1000):
                self.assertEqual(plenty.most_away(Card()), room.HOST_SHARE * 400)
                tell(2000)
                self.assertEqual(plenty.most_away(Card()), 0)

    def test_choices_are_promised(self):
        _, tell = self.other()
        known, module = cases.Cases(), nn.Linear(2, 2)
        case = case_of(module, Choice("some", 1, 1, offload=30.0))
        with mock.patch.object(cases, "promises", self.mine):
            known.begin(module, case)
            self.assertEqual(tell(1), 30)
            known.use({case: Choice("less", 1, 1, offload=10.0)})
            self.assertEqual(tell(1), 10)
            known.use({case: Choice("none", 1, 1)})
            self.assertEqual(tell(1), 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
