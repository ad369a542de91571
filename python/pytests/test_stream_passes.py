"""Passes over a stream as people's loops make them: iterators that are left, ranks that must take
the same number of steps, and rows that must be mixed.
"""

import os
import subprocess
import sys
import tempfile
import unittest
import warnings

import memroom
import numpy
import pyarrow
import pyarrow.feather
import pyarrow.parquet
from memroom.command import find


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def stream(self, rows=100, **options):
        path = self.path("%d.npy" % rows)
        if not os.path.exists(path):
            numpy.save(path, numpy.arange(rows))
        return memroom.Stream(path, **{"batch_size": 10, **options})


def values(batches):
    return [numpy.asarray(b["data"]).tolist() for b in batches]


class Passes(Case):
    def loaders(self, **options):
        """The ways in which a stream is read: itself, and by torch with and without workers."""
        from torch.utils.data import DataLoader

        yield self.stream(**options)
        for workers in (0, 2):
            for persistent in {False, workers > 0}:
                yield DataLoader(
                    self.stream(**options).torch(),
                    batch_size=None,
                    num_workers=workers,
                    persistent_workers=persistent,
                )

    def test_every_iterator_is_a_new_pass(self):
        for loader in self.loaders():
            for _ in range(3):
                self.assertEqual(values([next(iter(loader))]), [[*range(10)]])
            left = iter(loader)
            next(left), next(left)
            self.assertEqual(sum(values(loader), []), [*range(100)])
            self.assertEqual(sum(values(loader), []), [*range(100)])

    def test_every_pass_is_another_epoch(self):
        """As in torch: a loop that takes some batches of each pass sees all rows in the end."""
        reference = self.stream(shuffle=True)
        epochs = [values(reference) for _ in range(3)]
        for loader in self.loaders(shuffle=True):
            heads = [values([next(iter(loader))])[0] for _ in range(2)]
            self.assertEqual(heads, [epoch[0] for epoch in epochs[:2]])
            self.assertEqual(values(loader), epochs[2])

    def test_going_on_needs_the_state(self):
        wanted = values(self.stream(shuffle=True))
        stream = self.stream(shuffle=True)
        left = iter(stream)
        head = values([next(left) for _ in range(3)])
        state = stream.state_dict()
        other = self.stream(shuffle=True, budget="700MiB")  # whose own window would be larger
        other.load_state_dict(state)
        self.assertEqual(head + values(other), wanted)
        stream.load_state_dict(state)
        self.assertEqual(head + values(stream), wanted)

    def test_stateful_data_loader(self):
        from torchdata.stateful_dataloader import StatefulDataLoader

        for workers in (0, 2):

            def loader():
                data = self.stream(shuffle=True).torch()
                return StatefulDataLoader(data, batch_size=None, num_workers=workers)

            whole = values(loader())
            first = loader()
            self.assertEqual(values([next(iter(first))]), whole[:1])
            again = loader()
            batches = iter(again)
            head = values([next(batches) for _ in range(4)])
            state = again.state_dict()
            rest = loader()
            rest.load_state_dict(state)
            self.assertEqual(head + values(rest), whole)

    def test_lightnings_sanity_check(self):
        import lightning
        import torch

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer, self.seen = torch.nn.Linear(1, 1), []

            def training_step(self, batch, _):
                return self.layer(batch["data"].float()[:, None]).mean()

            def on_validation_epoch_start(self):
                self.seen.append([])

            def validation_step(self, batch, _):
                self.seen[-1] += batch["data"].tolist()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.01)

        for workers in (0, 1):
            model = Model()
            quiet = dict.fromkeys(
                ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"),
                False,
            )
            trainer = lightning.Trainer(
                max_epochs=2, accelerator="cpu", num_sanity_val_steps=2, **quiet
            )
            train, check = (
                torch.utils.data.DataLoader(s.torch(), batch_size=None, num_workers=workers)
                for s in (self.stream(20), self.stream())
            )
            trainer.fit(model, train, check)
            self.assertEqual(model.seen, [[*range(20)], [*range(100)], [*range(100)]])

    def test_accelerate(self):
        import accelerate
        from torch.utils.data import DataLoader

        for workers in (0, 2):
            loader = DataLoader(self.stream().torch(), batch_size=None, num_workers=workers)
            prepared = accelerate.Accelerator(cpu=True).prepare(loader)
            next(iter(prepared))
            for _ in range(2):
                self.assertEqual(sum(values(prepared), []), [*range(100)])

    def test_a_loader_of_the_stream_itself(self):
        from torch.utils.data import DataLoader

        with self.assertRaisesRegex(TypeError, r"DataLoader\(stream.torch\(\), batch_size=None"):
            next(iter(DataLoader(self.stream())))


RANK = """
import os, sys, torch.distributed as dist, memroom
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for drop in (False, True):
    stream = memroom.Stream(sys.argv[1], batch_size=10, drop_last=drop, shuffle=True)
    for epoch in range(2):
        steps = []
        for batch in stream:
            dist.barrier()
            steps.append(batch["data"].tolist())
        gathered = [None] * world
        dist.all_gather_object(gathered, steps)
        if rank == 0:
            assert len({len(s) for s in gathered}) == 1, [len(s) for s in gathered]
            assert len(steps) == len(stream), (len(steps), len(stream))
            rows = [r for s in gathered for b in s for r in b]
            if drop:
                assert len(rows) == len(set(rows)) == len(stream) * world * 10
            else:
                assert set(rows) == set(range(255)) and len(rows) < 255 + 10 * world
dist.destroy_process_group()
"""


class Parts(Case):
    """Streams that are made of others: split, select, map, filter, mix."""

    def table(self, rows=5000, columns=6):
        path = self.path("t.parquet")
        if not os.path.exists(path):
            names = {"c%d" % i: numpy.arange(rows, dtype="f4") * i for i in range(columns)}
            table = pyarrow.table({"id": numpy.arange(rows), **names})
            pyarrow.parquet.write_table(table, path, row_group_size=700)
        return memroom.Stream(path, batch_size=64, shuffle=True)

    def rows(self, stream):
        return sorted(row for batch in stream for row in numpy.asarray(batch["id"]).tolist())

    def test_split(self):
        whole = self.table()
        train, valid, test = whole.split(0.8, 0.1, 0.1)
        found = [self.rows(part) for part in (train, valid, test)]
        self.assertEqual([len(rows) for rows in found], [4000, 500, 500])
        self.assertEqual(sorted(sum(found, [])), [*range(5000)])
        self.assertEqual([train.rows, len(valid)], [4000, 8])
        for row in range(0, 5000, 1000):  # a share of every stretch
            self.assertEqual(sum(row <= r < row + 1000 for r in found[1]), 100)
        plain = memroom.Stream(whole.sources, batch_size=7, budget="64MiB").split(0.8, 0.2)[0]
        ordered = [r for b in plain for r in b["id"].tolist()]
        self.assertEqual(ordered, found[0])  # by files and seed alone, in the files' order
        self.assertNotEqual(self.rows(whole.split(0.8, 0.2, seed=1)[0]), found[0])
        again = iter(train)
        next(again)
        state, other = train.state_dict(), whole.split(0.8, 0.2)[1]
        expected = next(again)["id"].tolist()
        resumed = self.table().split(0.8, 0.1, 0.1)[0]
        resumed.load_state_dict(state)
        self.assertEqual(next(iter(resumed))["id"].tolist(), expected)
        with self.assertRaisesRegex(ValueError, "taken with part"):
            other.load_state_dict(state)
        for wrong in ((0.5,), (0.5, 0.6), (1.5, -0.5)):
            with self.assertRaisesRegex(ValueError, "add up to 1"):
                whole.split(*wrong)

    def test_select_map_filter(self):
        from torch.utils.data import DataLoader

        made = self.table().select("id", "c2").map(doubled).filter(even)
        for batches in (made, DataLoader(made.torch(), batch_size=None, num_workers=2)):
            seen = list(batches)
            self.assertEqual(self.rows(seen), [*range(0, 5000, 2)])
            self.assertEqual(list(seen[0]), ["id", "c2", "twice"])
            self.assertEqual(numpy.asarray(seen[0]["twice"] - 4 * seen[0]["id"]).tolist()[0], 0)
        with self.assertRaisesRegex(ValueError, "no column 'nix'"):
            made.select("nix")
        with self.assertRaisesRegex(ValueError, "truth values"):
            next(iter(self.table().filter(lambda batch: batch["id"])))

    def test_workers_send_what_the_plain_loop_reads(self):
        import torch
        from torch.utils.data import DataLoader

        wide, narrow = self.table(), self.table().select("id", "c1")
        for stream in (wide, narrow, wide.map(doubled)):
            expected = list(stream)
            stream.set_epoch(0)
            loader = DataLoader(stream.torch(), batch_size=None, num_workers=2)
            for mine, theirs in zip(expected, loader):
                self.assertIs(type(theirs), dict)
                self.assertEqual(list(mine), list(theirs))
                for name, values in mine.items():
                    self.assertTrue(torch.equal(torch.from_numpy(values), theirs[name]), name)
        x, y = next(iter(DataLoader(wide.torch(y="id", stack=True), batch_size=None)))
        self.assertEqual((tuple(x.shape), x.dtype, y.dtype), ((64, 6), torch.float32, torch.int64))
        self.assertTrue(torch.equal(x[:, 1], y.float()))

    def test_loaders_that_collate(self):
        """A function of the user sees tensors, with and without workers. Batches of batches, which
        a DataLoader makes where batch_size=None is forgotten, are refused with what to write."""
        from torch.utils.data import DataLoader

        def summed(batch):
            return int(batch["id"].sum())

        def joined(batches):
            return [int(one) for batch in batches for one in batch["id"]]

        for workers in (0, 2):
            stream = self.table()
            loader = DataLoader(
                stream.torch(), batch_size=None, num_workers=workers, collate_fn=summed
            )
            self.assertEqual(sum(loader), sum(range(5000)))
            pairs = DataLoader(
                self.table().torch(), batch_size=2, num_workers=workers, collate_fn=joined
            )
            seen = [row for rows in pairs for row in rows]
            self.assertEqual(sorted(seen), [*range(5000)])
            with self.assertRaisesRegex(ValueError, "batch_size=None"):
                next(iter(DataLoader(stream.torch(), num_workers=workers)))
        pair = next(iter(DataLoader(stream.select("id").torch(), batch_size=None, num_workers=1)))
        self.assertFalse(pair["id"]._is_view())

    def test_workers_run_only_where_they_have_something_to_do(self):
        """Numbers alone are read by the loader's own process, unless workers would be noticed."""
        import multiprocessing

        from torch.utils.data import DataLoader

        pairs = self.table().torch(x=["id", "c1"], y="c2", stack=True)
        for data, options, workers in (
            (self.table().torch(), {}, 0),
            (self.table().torch(), {"persistent_workers": True}, 0),
            (pairs, {}, 0),
            (self.table().map(doubled).torch(), {}, 2),
            (self.table().torch(), {"worker_init_fn": str}, 2),
            (self.table().torch(), {"collate_fn": dict}, 2),
            (self.table().torch(), {"timeout": 60}, 2),
        ):
            loader = DataLoader(data, batch_size=None, num_workers=2, **options)
            for _ in range(2):
                batches = iter(loader)
                next(batches)
                self.assertEqual(len(multiprocessing.active_children()), workers, options)
                self.assertEqual(1 + len(list(batches)), len(data))
            del batches, loader

    def test_batches_of_workers_may_be_kept(self):
        """Their memory is used again: what was read stays, whatever map() has made of it. The first
        ones are read where they lie."""
        from memroom import stream_torch
        from torch.utils.data import DataLoader

        def nested(batch):
            return batch["data"] * 2, {"kept": [batch["data"], "text", 3]}

        loader = DataLoader(
            self.stream(1000).map(nested).torch(), batch_size=None, num_workers=2, prefetch_factor=3
        )
        for _ in range(2):
            whole = list(loader)
            first = [int(one) for twice, _ in whole for one in twice]
            self.assertEqual(first, [*range(0, 2000, 2)])
            inner = [int(one) for _, rest in whole for one in rest["kept"][0]]
            self.assertEqual(inner, [*range(1000)])
            self.assertEqual(whole[0][1]["kept"][1:], ["text", 3])
            self.assertEqual(len(stream_torch._lent), stream_torch.LENT)
            del whole
            self.assertFalse(stream_torch._lent)
        gone = subprocess.Popen(["true"])
        gone.wait()
        with self.assertRaisesRegex(memroom.FeedError, "worker %d .* ended" % gone.pid):
            stream_torch._unpacked((gone.pid, 3, 0), 0, b"")

    def test_mix(self):
        low, high = self.table().split(0.5, 0.5)
        mixed = memroom.mix([low, high], weights=[1, 3])
        seen = list(mixed)
        self.assertEqual(len(seen), len(mixed))
        of_low = {row for row in self.rows(low)}
        for batch in seen:
            self.assertEqual(len(batch["id"]), 64)
            self.assertEqual(sum(row in of_low for row in batch["id"].tolist()), 16)
        again = iter(mixed)
        next(again)
        state, expected = mixed.state_dict(), next(again)["id"].tolist()
        mixed.load_state_dict(state)
        self.assertEqual(next(iter(mixed.torch()))["id"].tolist(), expected)
        with self.assertRaisesRegex(ValueError, "same columns"):
            next(iter(memroom.mix([low, high.select("id")])))
        for wrong in ([1], [1, 0]):
            with self.assertRaises(ValueError):
                memroom.mix([low, high], wrong)


def doubled(batch):
    return {**batch, "twice": batch["c2"] * 2}


def even(batch):
    return batch["id"] % 2 == 0


class Ranks(Case):
    def test_torchrun(self):
        """25 full batches and one of 5 rows, over two and four ranks that wait for each other."""
        numpy.save(self.path("n.npy"), numpy.arange(255))
        with open(self.path("rank.py"), "w") as file:
            file.write(RANK)
        for world in (2, 4):
            command = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(world),
            ]
            done = subprocess.run(
                [sys.executable, *command, self.path("rank.py"), self.path("n.npy")],
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])

    def test_steps_of_any_world(self):
        """All ranks, worlds, places to go on from; what comes is what docs/feed.md says."""
        for rows in (95, 100, 9):
            whole = values(self.stream(rows))
            for world in (1, 2, 3, 7):
                for drop, even in ((False, True), (True, True), (False, False), (True, False)):
                    ranks = [
                        self.stream(rows, rank=r, world=world, drop_last=drop, even_ranks=even)
                        for r in range(world)
                    ]
                    kept = [b for b in whole if len(b) == 10] if drop else whole
                    parts = [values(s) for s in ranks]
                    self.assertEqual([len(p) for p in parts], [len(s) for s in ranks])
                    count = sum(map(len, parts))
                    woven = [parts[k % world][k // world] for k in range(count)]
                    if not even:
                        wanted = kept
                    elif drop:
                        wanted = kept[: len(kept) // world * world]
                    else:
                        steps = -(-len(kept) // world)
                        wanted = [kept[k % len(kept)] for k in range(steps * world)]
                    self.assertEqual(woven, wanted, (rows, world, drop, even))


class Mixing(Case):
    ROWS = 1_200_000

    def write(self, name):
        rng = numpy.random.default_rng(0)
        label = numpy.repeat(numpy.arange(10.0), self.ROWS // 10)
        table = pyarrow.table(
            {"label": label, **{"x%d" % i: rng.random(self.ROWS) for i in range(12)}}
        )
        path = self.path(name)
        if name == "one.parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=self.ROWS)
        elif name == "groups.parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=50_000)
        elif name == "a.arrow":
            pyarrow.feather.write_feather(table, path, compression="uncompressed")
        elif name == "a.feather":
            pyarrow.feather.write_feather(table, path, compression="lz4")
        elif name == "a.npy":
            numpy.save(path, numpy.column_stack([c.to_numpy() for c in table.columns]))
        else:
            source = self.path("one.parquet")
            pyarrow.parquet.write_table(table.select(["label", "x0", "x1", "x2"]), source)
            command = [find(), "feed", "convert", source, "--to", path]
            subprocess.run(command, check=True, capture_output=True)
        return path

    def test_classes_of_a_batch(self):
        """Sorted labels, ten classes, batches of 256: 95 % of what a full shuffle gives."""
        files = "one.parquet groups.parquet a.arrow a.feather a.npy a.csv a.jsonl"
        for name in files.split():
            path = self.write(name)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                stream = memroom.Stream(path, batch_size=256, shuffle=True, budget="256MiB")
                seen = []
                for batch in stream:
                    label = batch["label"] if "label" in batch else batch["data"][:, 0]
                    seen.append(len(numpy.unique(label)))
                stream.close()
            self.assertGreaterEqual(numpy.mean(seen), 9.5, name)
            os.unlink(path)

    def test_a_budget_that_is_too_small_is_said(self):
        path = self.write("a.npy")
        with self.assertWarnsRegex(
            UserWarning, r"a window of 1 MiB mixes.*would hold 3\.\d of them"
        ):
            next(iter(memroom.Stream(path, shuffle=True, window="1MiB")))
