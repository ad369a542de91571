"""memroom.Stream with names, contents and loops as people have them: folders and patterns, files
that hold something else than their name says, loops that count batches. Needs the binary in
MEMROOM_BINARY.
"""

import gzip
import json
import os
import pathlib
import re
import tarfile
import threading
import unittest.mock
from io import BytesIO

import memroom
import numpy
import pandas
import pyarrow
import pyarrow.parquet
from test_stream import Case, joined


class Inputs(Case):
    def write(self, name, content):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def rows(self, *names, **options):
        paths = [self.path(name) for name in names]
        return joined(memroom.Stream(paths[0] if len(paths) == 1 else paths, **options))

    def refused(self, why, *names, **options):
        with self.assertRaisesRegex(memroom.FeedError, why):
            self.rows(*names, **options)


class Names(Inputs):
    def numbers(self, *names, **options):
        return self.rows(*names, **options)["x"].tolist()

    def test_folders(self):
        for place, name in enumerate(
            ("a.csv", "deep/er/b.csv", "_hidden.csv", ".x/c.csv", "READ.ME")
        ):
            self.write("d/" + name, "x\n%d\n" % place)
        self.assertEqual(self.numbers("d"), [0, 1])
        os.symlink(self.path("d"), self.path("d/deep/loop"))
        self.assertEqual(self.numbers("d"), [0, 1])
        self.write("d/c.jsonl", '{"x": 5}\n')
        self.refused(r"several formats \(2 csv, 1 jsonl\).*\*\.csv", "d")
        os.makedirs(self.path("empty"))
        self.refused("files' names show no format", "empty")

    def test_folders_that_hold_a_column(self):
        table = pyarrow.table(
            {"y": [7, 7, 8, 8], "lang": ["a b", None, "a b", "c"], "x": [1, 2, 3, 4]}
        )
        root = self.path("hive")
        pyarrow.parquet.write_to_dataset(table, root, partition_cols=["y", "lang"])
        for shuffle in (False, True):
            found = joined(memroom.Stream(root, batch_size=2, shuffle=shuffle, seed=1))
            rows = sorted(zip(found["x"], found["y"], found["lang"]))
            self.assertEqual(rows, [(1, 7, "a b"), (2, 7, None), (3, 8, "a b"), (4, 8, "c")])
        self.assertEqual(self.rows("hive", columns=["y"])["y"].tolist(), [7, 7, 8, 8])
        some = self.path("gaps")  # a number that some rows miss is NaN, as in pandas
        gaps = pyarrow.table({"n": [None, 5], "x": [1, 2]})
        pyarrow.parquet.write_to_dataset(gaps, some, partition_cols=["n"])
        found = joined(memroom.Stream(some, batch_size=4))
        numbers = dict(zip(found["x"].tolist(), found["n"].tolist()))
        self.assertEqual(numbers[2], 5.0)
        self.assertNotEqual(numbers[1], numbers[1])
        # What the file itself holds wins, and other formats have no such columns.
        self.write("y=1/a.csv", "x\n5\n")
        self.assertEqual(list(self.rows("y=1/a.csv")), ["x"])
        pyarrow.parquet.write_table(pyarrow.table({"y": [3]}), self.path("y=1/b.parquet"))
        self.assertEqual(self.rows("y=1/b.parquet")["y"].tolist(), [3])

    def test_patterns(self):
        for place, name in enumerate(("a.csv", "p/b.csv", "p/q/c.csv")):
            self.write("d/" + name, "x\n%d\n" % place)
        self.assertEqual(self.numbers("d/**/*.csv"), [0, 1, 2])
        self.assertEqual(self.numbers("d/**/q/*.csv"), [2])
        self.assertEqual(self.numbers("d/*/**/c.csv"), [2])
        self.refused("no file matches", "d/**/*.parquet")

    def test_braces(self):
        for n in range(8, 12):
            self.write("s-%03d.csv" % n, "x\n%d\n" % n)
        self.assertEqual(self.numbers("s-{008..011}.csv"), [8, 9, 10, 11])
        self.assertEqual(self.numbers("s-{010,008}.csv"), [8, 10])
        self.refused("s-012.csv", "s-{008..012}.csv")
        self.write("{a}.csv", "x\n7\n")
        self.assertEqual(self.numbers("{a}.csv"), [7])
        self.refused("more than 1000000 names", "{0..999}{0..9999}.csv")

    def test_names_that_look_like_patterns(self):
        for place, name in enumerate(("a[1].csv", "what?.csv", "d #é.csv", "b{x,y}.csv", "*.csv")):
            self.write(name, "x\n%d\n" % place)
            self.assertEqual(self.numbers(name), [place], name)

    def test_other_ways_to_write_a_path(self):
        path = self.write("a.csv", "x\n1\n")
        self.assertEqual(joined(memroom.Stream(pathlib.Path(path)))["x"].tolist(), [1])
        self.assertEqual(joined(memroom.Stream("file://" + path))["x"].tolist(), [1])
        with unittest.mock.patch.dict(os.environ, {"HOME": self.folder.name}):
            self.assertEqual(joined(memroom.Stream("~/a.csv"))["x"].tolist(), [1])

    def test_files_without_rows_change_no_type(self):
        for names in ("abc", "bca"):
            for name, text in zip(names, ("x,y\n", "x,y\n1,\n", "x,y\n2,3\n")):
                self.write("empty/%s.csv" % name, text)
            read = joined(memroom.Stream(self.path("empty")))
            self.assertEqual(read["x"].dtype.kind + read["y"].dtype.kind, "if")
            self.assertEqual(sorted(read["x"]), [1, 2])

    def test_a_batch_that_does_not_fit(self):
        """What is asked for is enough."""
        path = self.write("long.csv", "t\n" + "x" * 10_000_000 + "\nshort\n")
        with self.assertRaisesRegex(memroom.FeedError, "a batch takes") as caught:
            list(memroom.Stream(path, batch_size=1, budget="64MiB"))
        enough = re.search(r"at least (\S+),", str(caught.exception))[1]
        lengths = [len(b["t"][0]) for b in memroom.Stream(path, batch_size=1, budget=enough)]
        self.assertEqual(lengths, [10_000_000, 5])

    def test_what_cannot_be_opened(self):
        os.mkfifo(self.path("p.csv"))  # opening it would wait for a writer
        self.refused("not a regular file", "p.csv")
        self.refused("there is no file", "none.csv")
        for address in ("gs://bucket/a.csv", "hf://datasets/x/a.parquet"):
            with self.assertRaisesRegex(memroom.FeedError, "addresses: use http://"):
                list(memroom.Stream(address))
        for name, why in (("a.npz", "numpy.save"), ("a.csv.bz2", "bzip2"), ("a.xlsx", "as CSV")):
            self.write(name, b"something")
            self.refused(why, name)
        for sources in ([], "", None, 5):
            with self.assertRaisesRegex(ValueError, "sources"):
                memroom.Stream(sources)


class Contents(Inputs):
    def test_csv_lines_of_spaces(self):
        for text in ("a,b\n1,2\n   \n \t\r\n3,4\n", " \n\n", "a\n1\n  \n2\n", "a,b\n 1,2\n  3,4"):
            path = self.write("a.csv", text)
            if text.strip():
                for options in ({}, {"skip_bad": True}, {"shuffle": True, "batch_size": 1}):
                    found = joined(memroom.Stream(path, **options))
                    order = numpy.argsort(next(iter(found.values())))
                    found = {name: values[order] for name, values in found.items()}
                    self.check(found, pandas.read_csv(path))
        self.write("t.tsv", "a\tb\n1\t2\n\t\n3\t4\n")  # here the tab separates two missing cells
        self.assertEqual(len(self.rows("t.tsv")["a"]), 3)

    def test_quotes_that_are_not_closed(self):
        for text in ('a,b\n1,"open\n2,x\n3,y\n', 'a,b\n1,x\n2,"', 'a,b\n1,"x""\n'):
            self.write("a.csv", text)
            self.refused("quote that is not closed", "a.csv")
            stream = memroom.Stream(self.path("a.csv"), skip_bad=True)
            self.assertEqual((stream.rows, stream.skipped), (text.count("x\n2"), 1))
        for text in ('a,b\n1,"x"', 'a,b\n1,"x""y"\n', 'a,b\n1,5" pipe\n', 'a,b\n1,""\n'):
            self.check(
                joined(memroom.Stream(self.write("b.csv", text))),
                pandas.read_csv(self.path("b.csv")),
            )
        self.write("c.csv", "a;;b\n")
        self.refused("not one character", "c.csv", delimiter=";;")
        self.write("d.txt", "a\tb\n1\t2\n")
        self.assertEqual(list(self.rows("d.txt", format="csv", delimiter="\\t")), ["a", "b"])

    def test_large_whole_numbers(self):
        values = [2**64 - 1, 2**63, 5]
        self.write("a.csv", "x\n" + "".join("%d\n" % v for v in values))
        self.write("a.jsonl", "".join('{"x": %d}\n' % v for v in values))
        for name in ("a.csv", "a.jsonl"):
            found = self.rows(name)["x"]
            self.assertEqual((found.dtype, found.tolist()), (numpy.dtype("u8"), values), name)
        self.write("b.csv", "x\n%d\n-1\n" % values[0])
        self.write("b.jsonl", '{"x": %d}\n{"x": -1}\n' % values[0])
        for name in ("b.csv", "b.jsonl"):  # no type holds both
            self.assertEqual(self.rows(name)["x"].tolist(), [float(2**64), -1.0], name)

    def test_nothing_in_it(self):
        for name in ("a.csv", "a.jsonl", "a.tfrecord", "b.csv"):
            self.write(name, "\n\n" if name == "b.csv" else "")
            self.refused("is empty: it has neither rows nor a line of column names", name)
        self.write("c.csv", "x\n1\n")
        self.assertEqual(self.rows("a.csv", "c.csv")["x"].tolist(), [1])

    def test_json_keys_however_they_are_written(self):
        rows = [{"caf\u00e9": 1, 'a"b\\': "x"}, {"caf\u00e9": 2, 'a"b\\': "y"}]
        for ascii in (True, False):
            self.write("a.jsonl", "\n".join(json.dumps(r, ensure_ascii=ascii) for r in rows))
            found = self.rows("a.jsonl", batch_size=1)
            self.assertEqual(list(found), list(rows[0]))
            self.assertEqual(found["caf\u00e9"].tolist(), [1, 2])
            self.assertEqual(list(found['a"b\\']), ["x", "y"])
        self.write("b.jsonl", '{"k": 1, "k": 2}\n{"\\u006b": 3}\n{"k": 4, "\\u006b": 5}\n')
        self.assertEqual(self.rows("b.jsonl")["k"].tolist(), [2, 3, 5])  # the last counts
        self.write("c.jsonl", '{"k": 1, "k": 2}\n{"j": 1}\n')  # k is missing in the second row
        numpy.testing.assert_array_equal(self.rows("c.jsonl")["k"], [2, numpy.nan])

    def test_json_that_is_no_lines(self):
        mark = "\ufeff"
        self.write("a.jsonl", mark + '{"x": 1}\r\n  \r\n{"x": 2}')
        self.assertEqual(self.rows("a.jsonl")["x"].tolist(), [1, 2])
        self.assertEqual(self.rows("a.jsonl", skip_bad=True)["x"].tolist(), [1, 2])
        self.write("b.json", json.dumps([{"x": 1}], indent=1))
        self.refused(r"one JSON list.*jq -c '\.\[\]'", "b.json")
        self.write("c.json", json.dumps({"x": 1}, indent=1))
        self.refused(r"over several lines.*jq -c \.", "c.json")

    def test_compressed_whatever_the_name_says(self):
        for name in ("a.csv", "a.csv.gz"):
            self.write(name, gzip.compress(b"x\n1\n") + gzip.compress(b"2\n"))
            self.assertEqual(self.rows(name)["x"].tolist(), [1, 2], name)
        zstd = pyarrow.Codec("zstd").compress(b'{"x": 3}\n', asbytes=True)
        self.write("b.jsonl", zstd)
        self.assertEqual(self.rows("b.jsonl")["x"].tolist(), [3])
        self.write("c.csv.gz", "x\n1\n")
        self.refused("the name ends in gzip, the content is something else", "c.csv.gz")
        self.write("d.csv.gz", gzip.compress(b"x\n" + os.urandom(9000).hex().encode())[:-900])
        self.refused("d.csv.gz: the compressed data ends before it should", "d.csv.gz")
        with tarfile.open(self.path("e.tgz"), "w:gz") as archive:
            member = tarfile.TarInfo("1.txt")
            member.size = 2
            archive.addfile(member, BytesIO(b"hi"))
        self.assertEqual(list(self.rows("e.tgz")["txt"]), [b"hi"])

    def test_something_else_than_the_name_says(self):
        table = pyarrow.table({"x": [1]})
        pyarrow.parquet.write_table(table, self.path("a.csv"))
        self.refused('expected csv, but the content is Parquet: say format="parquet"', "a.csv")
        self.assertEqual(self.rows("a.csv", format="parquet")["x"].tolist(), [1])
        for encoding in ("utf-16", "utf-16-be"):
            self.write(
                "b.txt",
                "\ufeff".encode(encoding) * (encoding != "utf-16") + "x\n1\n".encode(encoding),
            )
            self.refused("UTF-16.*iconv", "b.txt")
        numpy.savez(self.path("c.npz"), x=numpy.arange(3))
        os.rename(self.path("c.npz"), self.path("c.jsonl"))
        self.refused("ZIP archive", "c.jsonl")
        self.write("d.csv", "a,b\r1,2\r3,4\r")
        self.refused(r"carriage return alone.*tr ", "d.csv")

    def test_what_stands_in_for_a_file(self):
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        page = "\n<!DOCTYPE html>\n<html><body>Sign in</body></html>\n"
        for name in ("p.csv", "p.jsonl", "p.txt", "p.parquet", "p.npy", "p.tfrecord"):
            self.write(name, pointer)
            self.refused("Git LFS pointer.*git lfs pull", name)
        for name in ("w.csv", "w.jsonl", "w.parquet", "w.arrow", "w.tar"):
            self.write(name, page)
            self.refused("web page, not data", name)
        self.write("w.txt", page)  # may be meant
        self.assertEqual(len(self.rows("w.txt")["text"]), 2)

    def test_fortran_order(self):
        base = numpy.random.default_rng(3).normal(size=(70_000, 3, 5))
        for array in (base, base[:, 0].astype(">f4"), base[:9].astype("c8"), base[:0], base > 0):
            numpy.save(self.path("a.npy"), numpy.asfortranarray(array))
            for shuffle in (False, True):
                wanted, found = array, memroom.Stream(self.path("a.npy"), shuffle=shuffle)
                if shuffle:
                    numpy.save(self.path("c.npy"), numpy.ascontiguousarray(array))
                    wanted = joined(memroom.Stream(self.path("c.npy"), shuffle=True)).get("data")
                if len(array):
                    numpy.testing.assert_array_equal(joined(found)["data"], wanted)
                else:
                    self.assertEqual(list(found), [])

    def test_parquet_fields_named_as_lists_are(self):
        table = pyarrow.table(
            {
                "order": [{"item": "a", "list": 1, "element": {"key_value": 2.5}}] * 3,
                "item": [7, 8, 9],
                "l": [[{"item": 1, "array": 2}], [], None],
                "m": pyarrow.array(
                    [[("k", 1)], [], None], pyarrow.map_(pyarrow.string(), pyarrow.int64())
                ),
                "ll": [[[1], [2, 3]], [], None],
            }
        )
        pyarrow.parquet.write_table(table, self.path("a.parquet"))
        found = self.rows("a.parquet")
        names = ["order.item", "order.list", "order.element.key_value", "item"]
        self.assertEqual(list(found), [*names, "l.item", "l.array", "m.key", "m.value", "ll"])
        self.assertEqual([found[name].tolist()[1] for name in names], ["a", 1, 2.5, 8])
        self.assertEqual([found["l.item"][0].tolist(), found["l.array"][0].tolist()], [[1], [2]])

    def test_parquet_columns_of_one_name(self):
        columns = [pyarrow.array([1]), pyarrow.array([{"b": 2}]), pyarrow.array([3])]
        table = pyarrow.table(columns, names=["a.b", "a", "a.b"])
        pyarrow.parquet.write_table(table, self.path("a.parquet"))
        found = {name: values.tolist() for name, values in self.rows("a.parquet").items()}
        self.assertEqual(found, {"a.b": [1], "a.b.1": [2], "a.b.2": [3]})

    def test_parquet_lists_of_whole_numbers_with_holes(self):
        table = pyarrow.table({"l": [[1, None], [2], None, []], "x": [1, 2, 3, 4]})
        pyarrow.parquet.write_table(table, self.path("a.parquet"))
        found = self.rows("a.parquet")["l"]
        numpy.testing.assert_array_equal(found[0], [1, numpy.nan])
        self.assertEqual([found[1].tolist(), found[2], found[3].tolist()], [[2], None, []])

    def test_parquet_reads_what_arrow_noted(self):
        rows = 30_000
        values = numpy.arange(rows * 4, dtype="f4")
        vectors = pyarrow.FixedSizeListArray.from_arrays(values, 4)
        table = pyarrow.table(
            {
                "v": vectors,
                "v_null": pyarrow.array(
                    [[1, 2], None] * (rows // 2), pyarrow.list_(pyarrow.int64(), 2)
                ),
                "d": pyarrow.array(range(rows), pyarrow.duration("ms")),
                "d_null": pyarrow.array([5, None] * (rows // 2), pyarrow.duration("ns")),
            }
        )
        path = self.path("a.parquet")
        for size in (rows, 999):
            pyarrow.parquet.write_table(table, path, row_group_size=size)
            found = self.rows("a.parquet")
            numpy.testing.assert_array_equal(found["v"], values.reshape(rows, 4))
            self.assertEqual(found["v_null"][0].tolist(), [1, 2])
            self.assertIsNone(found["v_null"][1])
            for name in ("d", "d_null"):
                wanted = table[name].to_numpy()
                self.assertEqual(found[name].dtype, wanted.dtype)
                numpy.testing.assert_array_equal(found[name], wanted)
            mixed = joined(memroom.Stream(path, shuffle=True, columns=["v", "d"]))
            place = mixed["d"].astype("i8")
            numpy.testing.assert_array_equal(mixed["v"], values.reshape(rows, 4)[place])
            stream = memroom.Stream(path, shuffle=True, columns=["v", "d"], batch_size=100)
            state = {**stream.state_dict(), "batch": 150}
            stream.load_state_dict(state)
            numpy.testing.assert_array_equal(joined(stream)["v"], mixed["v"][15_000:])
        plain = pyarrow.table({"v": pyarrow.array([[1.0]], pyarrow.list_(pyarrow.float32()))})
        pyarrow.parquet.write_table(plain, self.path("b.parquet"))
        both = self.rows("a.parquet", "b.parquet", columns=["v"])["v"]
        self.assertEqual([both[1].tolist(), both[-1].tolist()], [[4, 5, 6, 7], [1]])

    def test_columns_that_some_files_lack(self):
        self.write("a.jsonl", '{"x": 1, "s": "t"}\n')
        self.write("b.jsonl", '{"x": 2, "l": [1.5]}\n')
        found = self.rows("a.jsonl", "b.jsonl")
        self.assertEqual(found["x"].tolist(), [1, 2])
        self.assertEqual(list(found["s"]), ["t", None])
        self.assertIsNone(found["l"][0])
        self.assertEqual(found["l"][1].tolist(), [1.5])
        for shard, members in (("a.tar", ("1.jpg", "1.txt")), ("b.tar", ("2.jpg",))):
            with tarfile.open(self.path(shard), "w") as archive:
                for name in members:
                    archive.addfile(tarfile.TarInfo(name), BytesIO())
        self.assertEqual(list(self.rows("a.tar", "b.tar")["txt"]), [b"", None])
        self.write("a.csv", "x,y\n1,2\n")
        self.write("b.csv", "x\n3\n")
        self.refused("b.csv has 1 columns, the files before it have 2: choose", "a.csv", "b.csv")
        found = self.rows("a.csv", "b.csv", columns=["x"])
        self.assertEqual(found["x"].tolist(), [1, 3])

    def test_columns_that_differ_are_said(self):
        self.write("a.csv", "x\n1\n")
        self.write("b.csv", "x\nt\n")
        self.refused('x": is text here and <i8 in the files before it; types', "a.csv", "b.csv")
        self.assertEqual(list(self.rows("a.csv", "b.csv", types={"x": "string"})["x"]), ["1", "t"])
        numpy.save(self.path("a.npy"), numpy.zeros((4, 3)))
        numpy.save(self.path("b.npy"), numpy.zeros((4, 5)))
        self.refused(r"<f8 of shape \[5\] here and <f8 of shape \[3\]", "a.npy", "b.npy")

    def test_sequence_examples_are_said(self):
        import tensorflow

        example = tensorflow.train.SequenceExample()
        example.context.feature["id"].int64_list.value.append(7)
        example.feature_lists.feature_list["t"].feature.add().int64_list.value.append(1)
        with tensorflow.io.TFRecordWriter(self.path("a.tfrecord")) as writer:
            writer.write(example.SerializeToString())
        self.refused("SequenceExample, whose feature lists are not read", "a.tfrecord")
        plain = tensorflow.train.Example()
        plain.features.feature["id"].int64_list.value.append(7)
        for kind in ("GZIP", "ZLIB"):
            options = tensorflow.io.TFRecordOptions(compression_type=kind)
            with tensorflow.io.TFRecordWriter(self.path("b.tfrecord"), options) as writer:
                writer.write(plain.SerializeToString())
            self.assertEqual(self.rows("b.tfrecord")["id"].tolist(), [7])


class Loops(Inputs):
    def stream(self, rows=100, **options):
        numpy.save(self.path("n.npy"), numpy.arange(rows))
        options = {"batch_size": 10, "shuffle": True, **options}
        return memroom.Stream(self.path("n.npy"), **options)

    def counted(self, iterable, batches):
        """As Lightning reads: so many batches, and never asks for one more."""
        source = iter(iterable)
        return numpy.concatenate([next(source)["data"] for _ in range(batches)]).tolist()

    def test_loops_that_count_batches(self):
        wanted = self.stream()
        epochs = [joined(wanted)["data"].tolist() for _ in range(3)]
        stream = self.stream()
        self.assertEqual([self.counted(stream, 10) for _ in range(3)], epochs)
        ranks = [self.stream(rank=r, world=3, even_ranks=False) for r in range(3)]
        seen = [[self.counted(s, len(s)) for s in ranks] for _ in range(2)]
        self.assertEqual([sorted(sum(epoch, [])) for epoch in seen], [sorted(epochs[0])] * 2)
        self.assertNotEqual(seen[0], seen[1])
        resumed = self.stream()  # a state at the end of an epoch has nothing left of it
        self.counted(resumed, 10)
        last = self.stream()
        last.load_state_dict(resumed.state_dict())
        self.assertEqual(list(last), [])
        self.assertEqual(joined(last)["data"].tolist(), epochs[1])

    def test_loops_that_count_batches_of_workers(self):
        from torch.utils.data import DataLoader

        for options in ({}, {"num_workers": 2}, {"num_workers": 3, "persistent_workers": True}):
            loader = DataLoader(self.stream().torch(), batch_size=None, **options)
            wanted = self.stream()
            for _ in range(3):
                self.assertEqual(self.counted(loader, 10), joined(wanted)["data"].tolist(), options)

    def test_lightning(self):
        import lightning
        import torch

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer, self.seen = torch.nn.Linear(1, 1), []

            def training_step(self, batch, _):
                self.seen.append(batch["data"].tolist())
                return self.layer(batch["data"].float()[:, None]).mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.01)

        model = Model()
        trainer = lightning.Trainer(
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        loader = torch.utils.data.DataLoader(self.stream().torch(), batch_size=None)
        trainer.fit(model, loader)
        wanted = self.stream()
        epochs = [b["data"].tolist() for _ in range(2) for b in wanted]
        self.assertEqual(model.seen, epochs)

    def test_closing(self):
        stream = self.stream()
        batches = iter(stream)
        next(batches)
        stream.close()
        with self.assertRaisesRegex(memroom.FeedError, "closed while it was read"):
            list(batches)
        with self.assertRaisesRegex(ValueError, "closed: make a new"):
            list(stream)
        with self.stream() as again:
            self.assertEqual(len(list(again)), 10)
        with self.assertRaisesRegex(ValueError, "closed"):
            next(iter(again))

    def test_arguments_that_are_wrong(self):
        for options, why in (
            ({"transport": "pigeon"}, "transport is memfd or copy"),
            ({"columns": "data"}, r'columns=\["data"\]'),
            ({"prefetch": -1}, "prefetch"),
            ({"budget": -5}, "not a size"),
            ({"batch_size": 0}, "at least 1, not 0"),
        ):
            with self.assertRaisesRegex(ValueError, why):
                self.stream(**options)
        for state in ({}, None, {"epoch": 1}):
            with self.assertRaisesRegex(ValueError, "not a stream's state"):
                self.stream().load_state_dict(state)

    def test_python_objects_for_hugging_face(self):
        table = pyarrow.table(
            {
                "n": [1, 2],
                "l": [[1, 2], [3]],
                "t": pyarrow.array([0, 10**9 + 1000], pyarrow.timestamp("ns")),
                "f": pyarrow.array([[1.0, 2.0], [3.0, 4.0]], pyarrow.list_(pyarrow.float32(), 2)),
            }
        )
        with pyarrow.ipc.new_file(self.path("a.arrow"), table.schema) as out:
            out.write_table(table)
        import datasets

        wanted = list(datasets.Dataset(pyarrow.table(table)))
        found = list(memroom.Stream(self.path("a.arrow")).hf())
        self.assertEqual(
            [{**r, "t": str(r["t"])[:26]} for r in found],
            [{**r, "t": str(r["t"])[:26]} for r in wanted],
        )
        self.assertEqual(type(found[0]["n"]), int)

    def test_texts_that_are_not_utf8_in_tensorflow(self):
        self.write("a.csv", b"x,s\n1,caf\xe9\n2,\n")
        batch = next(iter(memroom.Stream(self.path("a.csv")).tf()))
        self.assertEqual(batch["s"].numpy().tolist(), [b"caf\xe9", b""])

    def test_keras_with_one_array_of_columns(self):
        self.write("a.csv", "a,b,y\n1,2,0\n3,4,1\n")
        x, y = memroom.Stream(self.path("a.csv")).keras(x=["b", "a"], y="y", stack=True)[0]
        self.assertEqual((x.tolist(), y.tolist()), ([[2, 1], [4, 3]], [0, 1]))
        with self.assertRaisesRegex(ValueError, "there is no column 'c'"):
            memroom.Stream(self.path("a.csv")).keras(x=["c"], y="y")

    def test_streams_in_threads(self):
        numpy.save(self.path("n.npy"), numpy.arange(100))
        found = []

        def read(seed):
            stream = memroom.Stream(self.path("n.npy"), batch_size=10, shuffle=True, seed=seed)
            found.append(sorted(joined(stream)["data"].tolist()))

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(found, [list(range(100))] * 6)
