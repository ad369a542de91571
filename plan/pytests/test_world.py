"""What a rehearsal keeps of the program's own choices, and what it leaves out."""

import unittest
from types import SimpleNamespace

try:
    import torch
    import torch.multiprocessing as multiprocessing
    from _memroom_probe.rehearse import imitation
except ImportError:
    torch = None

from _memroom_probe.rehearse import world


@unittest.skipIf(torch is None, "needs torch")
class Loaders(unittest.TestCase):
    """A loader of a rehearsal loads in the program's own process, and else as it was asked to."""

    def setUp(self):
        spawn, start = multiprocessing.spawn, multiprocessing.start_processes

        def restore():
            multiprocessing.spawn, multiprocessing.start_processes = spawn, start

        self.addCleanup(restore)

        class Loader(torch.utils.data.DataLoader):
            __init__ = torch.utils.data.DataLoader.__init__

        self.loader = Loader
        data = SimpleNamespace(DataLoader=Loader)
        rehearsal = SimpleNamespace(target={})
        world._one_process(rehearsal, SimpleNamespace(utils=SimpleNamespace(data=data)))

    def test_by_name(self):
        made = self.loader(
            range(10), batch_size=4, num_workers=2, prefetch_factor=4, timeout=5, drop_last=True
        )
        self.assertEqual((made.num_workers, made.timeout, made.drop_last), (0, 0, True))
        self.assertEqual([len(batch) for batch in made], [4, 4])

    def test_by_place(self):
        made = self.loader(range(10), 4, False, None, None, 2, None, True, True)
        self.assertEqual((made.num_workers, made.pin_memory, made.drop_last), (0, False, True))
        self.assertEqual([len(batch) for batch in made], [4, 4])

    def test_behind_what_is_left_out(self):
        """The generator comes after the time-out and what starts a worker."""
        own = torch.Generator()
        made = self.loader(
            range(10), 4, True, None, None, 2, list, False, False, 5, print, "spawn", own
        )
        self.assertIs(made.generator, own)
        self.assertIs(made.collate_fn, list)
        self.assertEqual((made.num_workers, made.timeout), (0, 0))
        self.assertIsNone(made.worker_init_fn)

    def test_few_by_place(self):
        made = self.loader(range(10), 5)
        self.assertEqual([len(batch) for batch in made], [5, 5])


if __name__ == "__main__":
    unittest.main()


@unittest.skipIf(torch is None, "needs torch")
class Growing(unittest.TestCase):
    """What calls of growing lengths give is said from those that were made."""

    def learn(self, growing, call, lengths):
        for n in lengths:
            x = torch.empty(2, n)
            growing.learn(("net", imitation.form((x,))), imitation.remember(call(x)))

    def guess(self, growing, *shape):
        made = growing.guess(("net", imitation.form((torch.empty(shape),))), 1.5)
        return made and [t.shape for t in imitation.again(made)]

    def test_lengths(self):
        growing = imitation.Growing()

        def call(x):
            return torch.empty(2, x.shape[1], 5), torch.empty(2)

        self.learn(growing, call, (7, 8))
        self.assertIsNone(self.guess(growing, 2, 9))  # nothing has shown it yet
        self.learn(growing, call, (9,))
        self.assertEqual(self.guess(growing, 2, 12), [(2, 12, 5), (2,)])
        self.assertIsNone(self.guess(growing, 2, 30))  # far from any that was made
        self.assertIsNone(self.guess(growing, 3, 12))

    def test_what_does_not_grow_evenly(self):
        growing = imitation.Growing()
        self.learn(growing, lambda x: torch.empty(x.shape[1] ** 2), (7, 8, 9))
        self.assertIsNone(self.guess(growing, 2, 10))
