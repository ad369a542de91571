"""Which processes are named as workers: those that the program or a loader forks, nobody else's."""

import importlib
import multiprocessing
import multiprocessing.process
import sys
import types
import unittest

from _memroom_probe import guard, link
from _memroom_probe.watch import holders, host, workers

STARTS = """
def start(context):
    process = context.Process(target=int)
    process.start()
    process.join()
    return process.pid
"""


def starter(file):
    names = {}
    exec(compile(STARTS, file, "exec"), names)
    return names["start"]


class Named(unittest.TestCase):
    def setUp(self):
        self.told, self.send = [], link.send
        link.send = lambda kind, fields: self.told.append((kind, fields))
        self.start = multiprocessing.process.BaseProcess.start
        workers.hook_processes(multiprocessing.process)

    def tearDown(self):
        link.send = self.send
        multiprocessing.process.BaseProcess.start = self.start

    def by(self, file, method="fork"):
        pid = starter(file)(multiprocessing.get_context(method))
        told, self.told = self.told, []
        self.assertTrue(all(t == ("forked", {"pid": pid, "by": t[1]["by"]}) for t in told), told)
        return [fields["by"] for _, fields in told]

    def test_the_programs_own(self):
        self.assertEqual(self.by("/home/me/train.py"), ["program"])

    def test_a_loaders(self):
        there = "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
        self.assertEqual(self.by(there), ["loader"])

    def test_a_compilers(self):
        there = "/v/lib/python3.11/site-packages/torch/_inductor/compile_worker/subproc_pool.py"
        self.assertEqual(self.by(there), [])

    def test_spawned_ones_share_nothing(self):
        self.assertEqual(self.by("/home/me/train.py", "spawn"), [])

    def test_a_pool(self):
        names = {}
        code = "def run(context):\n    with context.Pool(2) as pool: return pool.map(abs, [-1])"
        exec(compile(code, "/home/me/train.py", "exec"), names)
        self.assertEqual(names["run"](multiprocessing.get_context("fork")), [1])
        self.assertEqual([t[1]["by"] for t in self.told], ["program", "program"])

    def test_hooked_once(self):
        start = multiprocessing.process.BaseProcess.start
        workers.hook_processes(multiprocessing.process)
        self.assertIs(multiprocessing.process.BaseProcess.start, start)


class Caches(unittest.TestCase):
    """A worker's dataset that keeps what it reads, looked at on a slow machine."""

    def setUp(self):
        self.told, self.clock, self.held = [], 0, 100 << 20
        worker = types.SimpleNamespace(_worker_info=types.SimpleNamespace(id=0, num_workers=2))
        self.addCleanup(importlib.reload, workers)
        self.patch(guard, "ledger", guard.Ledger())
        self.patch(link, "send", lambda kind, fields: self.told.append(kind))
        self.patch(guard, "now", lambda: self.clock)
        self.patch(guard, "used", lambda: self.clock)
        self.patch(host, "memory", lambda: (0, self.held))
        self.patch(holders, "look", self.look)
        guard.ledger.began_ns, guard.ledger.counting = 0, True
        name = "torch.utils.data._utils.worker"
        before, sys.modules[name] = sys.modules.get(name), worker
        self.addCleanup(self.put_back, name, before)
        importlib.reload(workers)  # its hooks take the clock when they are made
        self.fetches = workers.Fetches()

    def patch(self, thing, name, value):
        self.addCleanup(setattr, thing, name, getattr(thing, name))
        setattr(thing, name, value)

    def put_back(self, name, module):
        sys.modules.pop(name)
        if module is not None:
            sys.modules[name] = module

    def look(self, roots):
        self.clock += 100 * 1000000  # as long as one may take
        found = holders.Holder("Images.cache", ("data.py", 0, None))
        found.host = self.held
        return {("Images.cache", "data.py"): found}

    def test_two_looks_within_a_second_are_not_given_up(self):
        for _ in range(3):
            self.fetches._fetched(object())
            self.held += 2 * workers.RISE
        self.assertEqual((self.told, guard.ledger.given_up), (["worker"], set()))
        self.assertEqual(guard.cost()[0], 200 * 1000000)

    def test_looks_that_took_their_share_wait(self):
        guard.ledger.asked, guard.ledger.asked_ns = guard.ASKED, guard.ASKED_NS + 1
        for _ in range(3):
            self.fetches._fetched(object())
            self.held += 2 * workers.RISE
        self.assertEqual((self.told, self.clock), (["given_up"], 0))


if __name__ == "__main__":
    unittest.main()
