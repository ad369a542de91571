"""Host memory, where training is on the CPU: what a call takes of it, and what there is of it for
each process of a job.
"""

import copy
import ctypes.util
import gc
import os
import pickle
import subprocess
import sys
import unittest
from unittest import mock

import torch
from _memroom_probe import made
from _memroom_probe.fit.batch.inputs import any_inputs
from _memroom_probe.fit.choose import choices, governor, means, telling
from _memroom_probe.fit.choose.case import case_of
from _memroom_probe.fit.measure import cost as measure
from _memroom_probe.fit.memory import heap, room
from _memroom_probe.fit.remedies.checkpointing import Part
from torch import nn
from training import remedies

MIB = 1 << 20


class Peak(unittest.TestCase):
    def test_what_is_gone_again_counts(self):
        around = room.HostRoom(1 << 40)
        around.start_peak()
        before = around.held()
        x = torch.ones(48 << 18)
        x.mul_(2)
        del x
        heap.heap.give_back(at_once=True)  # it may have been a hole of the heap
        self.assertLess(around.held(), before + 16 * MIB)
        self.assertGreaterEqual(around.peak(), before + 44 * MIB)
        around.start_peak()
        self.assertLess(around.peak(), before + 16 * MIB)


class Optimizers(unittest.TestCase):
    def test_each_is_found_once(self):
        """Made before and after somebody asked, copied, read from a file; not those in front of
        another, and not those that are gone.
        """
        weights = [torch.zeros(2, requires_grad=True)]
        first = torch.optim.SGD(weights, 0.1)
        known = {id(o) for o in room.optimizers()}
        self.assertIn(id(first), known)
        later = [torch.optim.Adam(weights), copy.deepcopy(first), pickle.loads(pickle.dumps(first))]

        class InFront(torch.optim.Optimizer):
            def __init__(self, behind):
                self.behind = behind

            param_groups = property(lambda self: self.behind.param_groups)
            state = property(lambda self: self.behind.state)

        front = InFront(later[0])
        made.optimizers.add(front)
        found = [id(o) for o in room.optimizers() if id(o) not in known]
        self.assertEqual(sorted(found), sorted(id(o) for o in later))
        coming = room.state_to_come()
        del later[:], front, found
        gc.collect()
        self.assertEqual({id(o) for o in room.optimizers()}, known)
        self.assertEqual(coming - room.state_to_come(), 2 * 8)


# A program that never compiles, then does.
WITHOUT_COMPILER = """
import sys
from _memroom_probe import fit
fit.install([{"id": "checkpointing"}], lambda *_, **__: None)
import torch
from torch.utils.checkpoint import checkpoint
def step(optimizer):
    optimizer.zero_grad()
    x = torch.ones(4, 3, requires_grad=True)
    again = torch.__version__.split(".") < ["2", "12"]  # later ones read the compiler's settings
    (checkpoint(model, x, use_reentrant=False) if again else model(x)).sum().backward()
    optimizer.step()
    return optimizer.step.__wrapped__.__code__.co_filename
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters())
print("ours" if "_memroom_probe" in step(optimizer) else "torch's", "torch._dynamo" in sys.modules)
torch.compile(model, backend="eager")(torch.ones(4, 3))
print("ours" if "_memroom_probe" in step(optimizer) else "torch's", "torch._dynamo" in sys.modules)
disabled = torch.optim.Optimizer.add_param_group.__wrapped__
optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
print(getattr(disabled, "__dynamo_disable") is disabled, len(optimizer.param_groups))
"""


# A program that loads a library as torch's compiler does, and counts the Pythons that it starts.
LOADS_A_LIBRARY = """
import subprocess, sys
from _memroom_probe import fit
fit.install([{"id": "checkpointing"}], lambda *_, **__: None)
import torch
from torch._inductor import config, cpu_vec_isa
usual, pythons = subprocess.Popen, []
class Popen(usual):
    def __init__(self, command, *args, **kwargs):
        pythons.append(command)
        super().__init__(command, *args, **kwargs)
subprocess.Popen = Popen
for path in sys.argv[1:]:
    load = cpu_vec_isa.VecISA._avx_py_load.replace("__lib_path__", path)
    try:
        print(cpu_vec_isa.subprocess.check_call([sys.executable, "-c", load]), end=" ")
    except OSError:
        print("refused", end=" ")
print(len(pythons), config.compile_threads, end=" ")
print(cpu_vec_isa.subprocess.check_output([sys.executable, "-c", "print(7)"]).decode().strip())
"""


class Compiler(unittest.TestCase):
    def test_it_starts_no_other_python(self):
        library = ctypes.util.find_library("c")
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), CUDA_VISIBLE_DEVICES="")
        env.pop("TORCHINDUCTOR_COMPILE_THREADS", None)
        command = [sys.executable, "-W", "ignore", "-c", LOADS_A_LIBRARY, library, "/no/such.so"]
        got = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
        self.assertEqual(got.stdout.split(), ["0", "refused", "0", "1", "7"])

    def test_it_is_not_loaded_before_something_is_compiled(self):
        command = [sys.executable, "-W", "ignore", "-c", WITHOUT_COMPILER]
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        got = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
        self.assertEqual(got.stdout.split("\n")[:3], ["ours False", "torch's True", "False 2"])


class Shares(unittest.TestCase):
    """Of 1,000 MiB, with so much held by the job, so much mapped of files and so many ranks."""

    def limit(self, job, ranks=1, own=100 * MIB):
        with mock.patch.object(room, "_of_cgroup", lambda: job), mock.patch.object(
            room, "_ranks_here", lambda: ranks
        ), mock.patch.object(room.HostRoom, "held", lambda _: own):
            return room.HostRoom(1000 * MIB).limit // MIB

    def test_pages_of_libraries(self):
        for mapped, left in ((10, 950), (120, 880), (600, 800)):
            job = {"held": 100 * MIB, "mapped": mapped * MIB}
            self.assertEqual(self.limit(job), left)
        self.assertEqual(self.limit(None), 800)

    def test_others_of_the_job(self):
        worker = {"held": 250 * MIB, "mapped": 0}
        self.assertEqual(self.limit(worker), 950 - 150)
        # Two ranks of 100 and a launcher of 150: half of what is free is for each.
        ranks = {"held": 350 * MIB, "mapped": 0}
        self.assertEqual(self.limit(ranks, 2), 100 + (950 - 350) // 2)
        self.assertEqual(self.limit(None, 2), 400)

    def test_the_cgroup_of_the_job(self):
        one = {
            "/proc/self/cgroup": "4:memory:/box/memroom-1\n0::/\n",
            "/sys/fs/cgroup/memory/box/memroom-1/memory.stat": "rss 1\ntotal_rss 7\n"
            "total_shmem 2\ntotal_mapped_file 5\ntotal_inactive_file 1\n",
            "/sys/fs/cgroup/memory/box/memroom-1/memory.limit_in_bytes": "4096\n",
            "/sys/fs/cgroup/memory/box/memroom-1/memory.usage_in_bytes": "96\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "%d\n" % (1 << 62),
            "/proc/meminfo": "MemAvailable: 1024 kB\n",
        }
        two = {
            "/proc/self/cgroup": "0::/user/memroom-2\n",
            "/sys/fs/cgroup/user/memroom-2/memory.stat": "anon 7\nshmem 2\nfile_mapped 5\n"
            "inactive_file 1\n",
            "/sys/fs/cgroup/user/memroom-2/memory.max": "4096\n",
            "/sys/fs/cgroup/user/memroom-2/memory.current": "96\n",
            "/sys/fs/cgroup/memory.max": "8192\n",
            "/proc/meminfo": "MemAvailable: 1024 kB\n",
        }
        none = {"/proc/self/cgroup": "0::/user\n"}
        for files, want in ((one, {"held": 9, "mapped": 5}), (two, {"held": 9, "mapped": 5})):
            with mock.patch.object(room, "open", _files(files), create=True):
                self.assertEqual(room._of_cgroup(), want)
                self.assertEqual(room._cgroup_limit(), 4096)
                self.assertEqual(room.host_free(), 4001)
        with mock.patch.object(room, "open", _files(none), create=True):
            self.assertIsNone(room._of_cgroup())


def _files(texts):
    def opened(path, *_):
        if path not in texts:
            raise FileNotFoundError(path)
        return mock.mock_open(read_data=texts[path])()

    return opened


class Unrolled(nn.Module):
    """Many small operations, one after the other in Python."""

    def __init__(self, times=120):
        super().__init__()
        self.cell, self.times = nn.GRUCell(8, 16), times

    def forward(self, x):
        h = x.new_zeros(len(x), 16)
        for _ in range(self.times):
            h = self.cell(x, h)
        return h


class FirstSteps(unittest.TestCase):
    def test_pieces_of_the_first_step_are_told(self):
        """They draw other masks of dropout, whatever is chosen after them."""

        class Plan:
            equivalence = "expected"

        model = nn.Linear(2, 2)
        for cut, want in ((False, "exact"), (True, "expected")):
            fields = []
            blocks = choices.Choice("blocks", 1, 1, checkpoint=[Part("a", model)])
            case = case_of(model, blocks, [blocks], plan=Plan())
            case.cut = cut
            chief = means.Means(lambda *_, f=fields, **of: f.append(of), set())
            telling.tell_choice(chief, case, 1, 2)
            self.assertEqual([f["equivalence"] for f in fields], [want])

    def test_what_has_failed_is_not_begun_with(self):
        """A call that is recomputed as a whole leaves nothing behind, but takes as much."""
        whole = choices.Choice("as it is", 100, 90)
        again = choices.Choice("whole", 101, 1, whole=True)
        blocks = choices.Choice("blocks", 60, 50, checkpoint=[Part("a", nn.Linear(2, 2))])
        g = governor.Governor(lambda *_, **f: None, {"checkpointing"}, failed=True)
        for free in (70, 200):
            for amplifies in ("", "several optimizers answer each other"):
                ways = [whole, again, blocks]
                taken = g.look._for_first_step(nn.Linear(2, 2), ways, free, amplifies)
                self.assertIs(taken, blocks)


class FirstStep(unittest.TestCase):
    """A wide table: what Adam keeps for it and computes with is more than there is, whatever is
    done about the batch.
    """

    def told(self, optimizer, spare):
        table = nn.EmbeddingBag(400000, 10)  # 15 MiB
        optimizer = optimizer(table.parameters())
        limit = room.HostRoom(1).held() + spare * MIB
        with remedies(("micro_batch", {"limit": limit, "failed": True}), of="no step") as told:
            loss = table(torch.randint(0, 400000, (8, 2))).sum()
        del optimizer, loss
        return [text for _, text, fields in told if "first step needs" in text]

    def test_it_is_told_at_once(self):
        self.assertIn("optimizer state 30.5", "".join(self.told(torch.optim.Adam, 120)))

    def test_it_is_not_told_where_it_fits(self):
        self.assertEqual(self.told(torch.optim.Adam, 300), [])
        self.assertEqual(self.told(lambda p: torch.optim.SGD(p, 0.1), 140), [])


class Orders(unittest.TestCase):
    def test_a_fat_part_at_the_end_saves_nothing(self):
        """A U-Net's last block is its fattest, and is run again while all the rest is there."""
        part = nn.Linear(1, 1)
        parts = [Part(str(i), part, saved, 5) for i, saved in enumerate((40, 30, 20, 50))]
        cost = measure.Cost(0, 140, 0, 150, 0, 1, 5, 5, False, False, [parts], 0, 0, 0)
        found = list(choices._some_parts(1, cost, 0, parts))
        one = [c for c in found if len(c.checkpoint) == 1]
        self.assertEqual([c.checkpoint[0].name for c in one], ["3", "0"])
        self.assertLess(one[1].needs, one[0].needs)
        self.assertLess(one[1].seconds, one[0].seconds)
        self.assertEqual(len({frozenset(p.name for p in c.checkpoint) for c in found}), len(found))


class Graphs(unittest.TestCase):
    def test_pieces_keep_their_graphs(self):
        """Nodes of pieces that wait for their backward pass take memory too."""
        model, x = Unrolled(), torch.randn(64, 8)
        cost = measure.cost(model, model, any_inputs((x,), {}), room.HostRoom(1 << 40))
        cost.graph = float(5 * MIB)

        class Plan:
            accumulates = False
            draws = None

        pieces = {
            c.pieces: c
            for c in choices.all_of(any_inputs((x,), {}), Plan(), cost, False)
            if c.share is not None and not c.share.keep and not c.checkpoint
        }
        grown = pieces[64].stays - pieces[2].stays
        self.assertGreaterEqual(grown, 62 * 5 * MIB)
        self.assertGreater(pieces[64].needs, pieces[4].needs)


if __name__ == "__main__":
    unittest.main()
