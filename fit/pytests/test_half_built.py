"""Looks at the program while other threads fill tuples: what is handed out half built cannot be
finished by who builds it.
"""

import sys
import threading
import unittest

import torch
from _memroom_probe.fit.memory import floor, room
from _memroom_probe.watch import models, of_torch
from _memroom_probe.watch.watched import watched

LOOKS = 2


class HalfBuilt(unittest.TestCase):
    def test_tuples_of_other_threads_are_left_alone(self):
        of_torch.install(torch)
        kept = []

        def build():
            while not done.is_set():
                tuple(len(kept) for _ in range(400))

        def failed(args):
            failures.append(args.exc_value)

        done, failures = threading.Event(), []
        before, threading.excepthook = threading.excepthook, failed
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        builder = threading.Thread(target=build)
        try:
            builder.start()
            for _ in range(LOOKS):
                kept.append(torch.nn.Linear(2, 2))
                torch.optim.SGD(kept[-1].parameters(), 0.1)
                watched.heap._tell()
                watched.builds._count()
                floor.of(torch.device("cpu"))
                room.optimizers()
        finally:
            done.set()
            builder.join()
            threading.excepthook = before
            sys.setswitchinterval(interval)
        self.assertEqual(failures, [])
        self.assertGreaterEqual(len(models._live()[torch.nn.Linear]), LOOKS)


if __name__ == "__main__":
    unittest.main()
