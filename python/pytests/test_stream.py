"""memroom.Stream against what pandas, pyarrow and NumPy read from the same files. Needs the binary
in MEMROOM_BINARY.
"""

import contextlib
import datetime
import decimal
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import re
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import memroom
import numpy
import pandas
import pyarrow
import pyarrow.feather
import pyarrow.parquet


def joined(stream):
    """All rows of an epoch, in order."""
    batches = list(stream)
    return {n: numpy.concatenate([b[n] for b in batches]) for n in batches[0]} if batches else {}


def reference(path):
    """What pandas reads, with floats rounded correctly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pandas.read_csv(path, float_precision="round_trip")


def mixed(rows, seed=0):
    rng = numpy.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "id": numpy.arange(rows),
            "f": rng.normal(size=rows),
            "g": rng.normal(size=rows).astype("f4"),
            "small": rng.integers(-100, 100, rows).astype("i1"),
            "u": rng.integers(0, 2**32, rows).astype("u4"),
            "flag": rng.integers(0, 2, rows).astype(bool),
            "word": ["w%d é" % (i % 97) for i in range(rows)],
        }
    )
    return frame


class Case(unittest.TestCase):
    def setUp(self):
        if not os.environ.get("MEMROOM_BINARY"):
            self.skipTest("needs the binary in MEMROOM_BINARY")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def check(self, found, frame):
        """Values equal those of a frame, missing ones too."""
        self.assertEqual(list(found), list(frame.columns))
        for name in frame.columns:
            wanted, got = frame[name], found[name]
            self.assertEqual(len(got), len(wanted), name)
            if got.dtype == object:
                plain = [None if v is None else v for v in got]
                expected = [
                    None if pandas.api.types.is_scalar(v) and pandas.isna(v) else v for v in wanted
                ]
                for a, b in zip(plain, expected):
                    if isinstance(a, numpy.ndarray):
                        numpy.testing.assert_array_equal(a, b)
                    else:
                        self.assertEqual(a, b, name)
            elif got.dtype.kind in "mM":
                numpy.testing.assert_array_equal(got, wanted.to_numpy().astype(got.dtype), name)
            else:
                numpy.testing.assert_array_equal(
                    got.astype("f8"), wanted.to_numpy(dtype="f8", na_value=numpy.nan), name
                )


class Formats(Case):
    def test_csv(self):
        texts = {
            "plain": "a,b,c\n1,2.5,x\n-3,1e3,y z\n",
            "quoted": 'a,b\n1,"x, ""y"""\n2,"line\nbreak"\n3,5" disk\n',
            "missing": "a,b,c,d\n1,,x,True\n2,NA,,False\n,3.5,null,True\n",
            "windows": "\ufeffa,b\r\n1,x\r\n\r\n2,y\r\n",
            "no newline at the end": "a,b\n1,2",
            "big": "a,b\n9223372036854775807,0.1\n-9223372036854775808,123456789.123456789123\n",
            "floats": "a\n.5\n5.\n-0.0\n1e-320\n1.7976931348623157e308\ninf\n-inf\n"
            "0.30000000000000004\n",
            "same names": "a,a,b\n1,2,3\n",
            "semicolons": "a;b\n1;2\n",
            "bools": "a\nTrue\nfalse\nTRUE\n",
            "spaces": "a,b\n 1, x \n 2,y\n",
            "header only": "a,b\n",
        }
        for name, text in texts.items():
            path = self.path("t.csv")
            with open(path, "w", newline="") as file:
                file.write(text)
            if name == "header only":
                self.assertEqual(list(memroom.Stream(path)), [])
                continue
            frame = (
                pandas.read_csv(path, sep=None, engine="python")
                if name == "semicolons"
                else (reference(path))
            )
            with self.subTest(name):
                self.check(joined(memroom.Stream(path, batch_size=2)), frame)

    def test_csv_compressed_without_header_and_typed(self):
        frame = mixed(5000)
        frame.to_csv(self.path("a.csv.gz"), index=False)
        self.check(joined(memroom.Stream(self.path("a.csv.gz"))), reference(self.path("a.csv.gz")))
        frame.to_csv(self.path("a.tsv"), index=False, sep="\t")
        types = {"f": "float32", "id": "int32", "small": "str"}
        found = joined(memroom.Stream(self.path("a.tsv"), types=types))
        self.assertEqual((found["f"].dtype, found["id"].dtype), (numpy.float32, numpy.int32))
        numpy.testing.assert_array_equal(found["f"], frame["f"].astype("f4"))
        self.assertEqual(found["small"].tolist(), [str(v) for v in frame["small"]])
        frame[["id", "f"]].to_csv(self.path("b.csv"), index=False, header=False)
        self.assertEqual(list(joined(memroom.Stream(self.path("b.csv"), header=False))), ["0", "1"])

    def test_jsonl(self):
        rows = [
            {
                "a": 1,
                "b": 1.5,
                "c": 'x\n\u00e9\U0001f600"',
                "d": True,
                "l": [1, 2],
                "o": {"k": [1]},
            },
            {"a": 2, "b": None, "c": None, "d": False, "l": [], "o": None},
            {"b": 3, "a": 3, "d": True, "l": [3.5], "n": None, "o": {"k": "}"}},
        ]
        path = self.path("t.jsonl")
        with open(path, "w") as file:
            for i, row in enumerate(rows):
                file.write(json.dumps(row, ensure_ascii=i == 0) + "\n\n")
        found = joined(memroom.Stream(path, batch_size=2))
        self.assertEqual(found["a"].tolist(), [1, 2, 3])
        self.assertEqual(found["a"].dtype, numpy.int64)
        numpy.testing.assert_array_equal(found["b"], [1.5, numpy.nan, 3])
        self.assertEqual(found["c"].tolist(), [rows[0]["c"], None, None])
        self.assertEqual([v.tolist() for v in found["l"]], [[1, 2], [], [3.5]])
        self.assertEqual(json.loads(found["o"][2]), {"k": "}"})
        self.assertTrue(numpy.isnan(found["n"]).all())
        frame = mixed(3000)
        frame.to_json(path, orient="records", lines=True, double_precision=15)
        self.check(
            joined(memroom.Stream(path)), pandas.read_json(path, lines=True, precise_float=True)
        )

    def test_npy(self):
        for array in (
            numpy.arange(5000),
            numpy.random.default_rng(1).normal(size=(3000, 7)).astype("f4"),
            numpy.zeros((10, 2, 3), "u1"),
            numpy.array(["a", "bcd"]),
            numpy.arange(6, dtype=">i4").reshape(3, 2),
            numpy.array(["2020-01-01"], "M8[D]"),
        ):
            numpy.save(self.path("a.npy"), array)
            found = joined(memroom.Stream(self.path("a.npy"), batch_size=999))["data"]
            numpy.testing.assert_array_equal(found, array)
            self.assertEqual(found.dtype.newbyteorder("="), array.dtype.newbyteorder("="))
        for bad, why in ((numpy.array([None]), "Python objects"),):
            numpy.save(self.path("b.npy"), bad)
            with self.assertRaisesRegex(memroom.FeedError, why):
                list(memroom.Stream(self.path("b.npy")))

    def rich(self, rows=2500):
        table = pyarrow.Table.from_pandas(mixed(rows))
        rng = numpy.random.default_rng(2)
        gone = rng.integers(0, 3, rows) == 0

        def holes(values, kind=None):
            return pyarrow.array([None if g else v for g, v in zip(gone, values)], kind)

        more = {
            "int_null": holes(range(rows), pyarrow.int32()),
            "float_null": holes([i / 3 for i in range(rows)], pyarrow.float32()),
            "text_null": holes(["t%d" % i for i in range(rows)]),
            "day": holes([datetime.date(2020, 1, 1 + i % 28) for i in range(rows)]),
            "when": holes([datetime.datetime(2020, 1, 1, 0, 0, i % 60) for i in range(rows)]),
            "ms": pyarrow.array(range(rows), pyarrow.timestamp("ms")),
            "raw": pyarrow.array([bytes([i % 256] * (i % 5)) for i in range(rows)]),
            "kind": pyarrow.array(["k%d" % (i % 3) for i in range(rows)]).dictionary_encode(),
            "half": pyarrow.array(numpy.arange(rows, dtype="f2")),
            "money": pyarrow.array(
                [decimal.Decimal(i * 7 - 99) / 4 for i in range(rows)], pyarrow.decimal128(12, 2)
            ),
            "ints": holes([list(range(i % 4)) for i in range(rows)]),
            "floats": pyarrow.array([[0.5] * (i % 3) for i in range(rows)]),
            "u64": pyarrow.array([2**63 + i for i in range(rows)], pyarrow.uint64()),
        }
        for name, values in more.items():
            table = table.append_column(name, values)
        return table

    def compare(self, found, table):
        self.assertEqual(list(found), table.column_names)
        for name in table.column_names:
            got, wanted = found[name], table[name].to_pylist()
            if name in ("day", "when", "ms"):
                wanted = table[name].combine_chunks().to_numpy(zero_copy_only=False)
                numpy.testing.assert_array_equal(got, wanted.astype(got.dtype), name)
                continue
            if name == "money":
                wanted = [float(v) for v in wanted]
            for a, b in zip(got, wanted):
                if isinstance(a, numpy.ndarray):
                    a = a.tolist()
                missing = b is None and a is not None  # then it is NaN
                if a == a if missing else a != b:
                    self.fail("%s: %r, not %r" % (name, a, b))

    def test_parquet(self):
        table = self.rich()
        for options in (
            {"compression": "snappy"},
            {"compression": "zstd", "row_group_size": 700},
            {"compression": "none", "use_dictionary": False, "data_page_size": 300},
            {"data_page_version": "2.0", "compression": "gzip", "data_page_size": 500},
            {"version": "1.0", "use_deprecated_int96_timestamps": True, "write_statistics": False},
        ):
            pyarrow.parquet.write_table(table, self.path("t.parquet"), **options)
            with self.subTest(str(options)):
                found = joined(memroom.Stream(self.path("t.parquet"), batch_size=300))
                # what the file itself says: version 1.0 widens some types
                self.compare(found, pyarrow.parquet.read_table(self.path("t.parquet")))
        frame = joined(memroom.Stream(self.path("t.parquet"), columns=["word", "id"]))
        self.assertEqual(list(frame), ["word", "id"])

    def test_parquet_numbers_however_they_are_stored(self):
        """Pages of both versions, packed in several ways, with dictionaries, runs and holes."""
        rng, rows = numpy.random.default_rng(0), 6_000

        def holes(values, share):
            return pyarrow.array(values, mask=rng.random(rows) < share)

        table = pyarrow.table(
            {
                "f4": rng.normal(size=rows).astype("f4"),
                "few": rng.integers(0, 7, rows).astype("f8"),
                "runs": numpy.repeat(numpy.arange(rows // 100), 100).astype("f4"),
                "i8": rng.integers(-(2**60), 2**60, rows),
                "u4": rng.integers(0, 2**32, rows).astype("u4"),
                "ts": pyarrow.array(rng.integers(0, 2**50, rows), pyarrow.timestamp("us")),
                "hf": holes(rng.normal(size=rows), 0.1),
                "hf4": holes(rng.integers(0, 5, rows).astype("f4"), 0.5),
                "hi": holes(rng.integers(0, 99, rows), 0.2),
                "hts": holes(rng.integers(0, 2**40, rows).astype("M8[us]"), 0.3),
                "none": pyarrow.nulls(rows, pyarrow.float64()),
            }
        )
        ways = [
            {"compression": packing, "data_page_version": version, "use_dictionary": words}
            for packing in ("snappy", "zstd", "none")
            for version in ("1.0", "2.0")
            for words in (True, False)
        ]
        ways += [{**way, "data_page_size": 700, "row_group_size": 2101} for way in ways]
        ways.append({"use_byte_stream_split": ["f4"], "use_dictionary": False})
        ways.append({"column_encoding": {"i8": "DELTA_BINARY_PACKED"}, "use_dictionary": False})
        names = [self.path("%d.parquet" % i) for i in range(len(ways))]
        for name, way in zip(names, ways):
            pyarrow.parquet.write_table(table, name, **way)
        batches = list(memroom.Stream(names, batch_size=rows))
        self.assertEqual(len(batches), len(ways))
        for batch, way in zip(batches, ways):
            with self.subTest(str(way)):
                self.compare(batch, table)

    def test_parquet_row_group_larger_than_the_budget(self):
        rows = 1_500_000
        table = pyarrow.table(
            {
                "id": numpy.arange(rows),
                **{"x%d" % i: numpy.arange(rows) * 0.5 + i for i in range(8)},
                "word": pyarrow.array(["word %d" % (i % 1000) for i in range(rows)]),
            }
        )
        path = self.path("one.parquet")
        pyarrow.parquet.write_table(table, path, row_group_size=rows)
        stream = memroom.Stream(path, batch_size=4096, budget="96MiB", shuffle=True, seed=3)
        seen = numpy.zeros(rows, bool)
        for batch in stream:
            self.assertFalse(seen[batch["id"]].any())
            seen[batch["id"]] = True
            numpy.testing.assert_array_equal(batch["x3"], batch["id"] * 0.5 + 3)
            self.assertEqual(batch["word"][0], "word %d" % (batch["id"][0] % 1000))
        self.assertTrue(seen.all())
        self.assertLessEqual(stream.stats["server"]["peak"], 96 << 20)

    def test_arrow(self):
        table = self.rich(3000)
        with pyarrow.OSFile(self.path("f.arrow"), "wb") as out:
            with pyarrow.ipc.new_file(out, table.schema) as writer:
                writer.write_table(table, max_chunksize=700)
        with pyarrow.OSFile(self.path("s.arrow"), "wb") as out:
            with pyarrow.ipc.new_stream(out, table.schema) as writer:
                writer.write_table(table, max_chunksize=700)
        pyarrow.feather.write_feather(table, self.path("z.feather"), compression="zstd")
        for name in ("f.arrow", "s.arrow", "z.feather"):
            with self.subTest(name):
                self.compare(joined(memroom.Stream(self.path(name), batch_size=256)), table)
        fixed = pyarrow.table(
            {"v": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(numpy.arange(12.0)), 3)}
        )
        pyarrow.feather.write_feather(fixed, self.path("v.feather"), compression="uncompressed")
        found = joined(memroom.Stream(self.path("v.feather")))["v"]
        numpy.testing.assert_array_equal(found, numpy.arange(12.0).reshape(4, 3))

    def test_arrays_of_several_axes_in_arrow(self):
        rng = numpy.random.default_rng(3)
        rows = 2_000
        arrays = {
            "image": rng.integers(0, 255, (rows, 4, 5, 3), "u1"),
            "square": rng.random((rows, 3, 3), "f4"),
            "mask": rng.random((rows, 2, 6)) < 0.5,
        }

        def nested(values):
            flat = pyarrow.array(values.reshape(-1))
            for size in reversed(values.shape[1:]):
                flat = pyarrow.FixedSizeListArray.from_arrays(flat, size)
            return flat

        table = pyarrow.table({name: nested(values) for name, values in arrays.items()})
        for compression in ("uncompressed", "zstd"):
            pyarrow.feather.write_feather(
                table, self.path("n.arrow"), compression=compression, chunksize=300
            )
            found = joined(memroom.Stream(self.path("n.arrow"), batch_size=128))
            for name, values in arrays.items():
                self.assertEqual(found[name].dtype, values.dtype)
                numpy.testing.assert_array_equal(found[name], values)
        tensors = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(arrays["square"])
        with pyarrow.OSFile(self.path("t.arrow"), "wb") as out:
            with pyarrow.ipc.new_stream(out, pyarrow.schema([("t", tensors.type)])) as writer:
                writer.write_table(pyarrow.table({"t": tensors}), max_chunksize=300)
        found = joined(memroom.Stream(self.path("t.arrow"), batch_size=128))["t"]
        numpy.testing.assert_array_equal(found, arrays["square"])
        holes = pyarrow.array(
            [[[1, 2]], None, [[3, None]]], pyarrow.list_(pyarrow.list_(pyarrow.int16(), 2), 1)
        )
        pyarrow.feather.write_feather(pyarrow.table({"h": holes}), self.path("h.arrow"))
        found = joined(memroom.Stream(self.path("h.arrow")))["h"]
        gone = numpy.nan
        numpy.testing.assert_array_equal(found, [[[1, 2]], [[gone, gone]], [[3, gone]]])

    def test_parquet_lists_in_a_row_group_of_many_parts(self):
        rng = numpy.random.default_rng(1)
        rows = 40_000
        lists = [None if i % 97 == 0 else rng.random(i % 60) for i in range(rows)]
        nested = [None if i % 89 == 0 else [[i] * k for k in range(i % 4)] for i in range(rows)]
        table = pyarrow.table(
            {
                "id": numpy.arange(rows),
                "v": pyarrow.array(lists, pyarrow.list_(pyarrow.float64())),
                "n": pyarrow.array(nested, pyarrow.list_(pyarrow.list_(pyarrow.int64()))),
            }
        )
        for options in ({}, {"data_page_version": "2.0"}, {"compression": "zstd"}):
            pyarrow.parquet.write_table(
                table,
                self.path("l.parquet"),
                row_group_size=rows,
                data_page_size=1 << 16,
                **options,
            )
            seen = 0
            for batch in memroom.Stream(self.path("l.parquet"), shuffle=True, budget="128MiB"):
                for i, values, deep in zip(batch["id"], batch["v"], batch["n"]):
                    # To the bit; NumPy's own comparison takes longer than reading the rows.
                    got = None if values is None else (values.dtype, values.tobytes())
                    want = None if lists[i] is None else (lists[i].dtype, lists[i].tobytes())
                    if got != want:
                        self.fail("row %d: %s, not %s" % (i, values, lists[i]))
                    self.assertEqual(None if deep is None else json.loads(deep), nested[i])
                    seen += 1
            self.assertEqual(seen, rows)

    def test_tar_of_many_blocks(self):
        with tarfile.open(self.path("m.tar"), "w") as tar:
            for i in range(300):
                for kind, content in (("bin", bytes([i % 256]) * (9_000 + i)), ("cls", b"%d" % i)):
                    info = tarfile.TarInfo("folder/%05d.%s" % (i, kind))
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        found = joined(memroom.Stream(self.path("m.tar"), shuffle=True, seed=1))
        self.assertEqual(sorted(int(c) for c in found["cls"]), list(range(300)))
        for number, content in zip(found["cls"], found["bin"]):
            self.assertEqual(content, bytes([int(number) % 256]) * (9_000 + int(number)))

    def test_text(self):
        with open(self.path("t.txt"), "w") as file:
            file.write("one\n\ntwo é\nthree")
        self.assertEqual(
            joined(memroom.Stream(self.path("t.txt")))["text"].tolist(), ["one", "two é", "three"]
        )

    def test_tar(self):
        with tarfile.open(self.path("t.tar"), "w") as tar:
            for i in range(300):
                members = {"img.png": bytes([i % 256]) * (i * 7 % 5000), "cls": str(i).encode()}
                if i % 10 == 0:
                    members.pop("cls")
                for ending, content in members.items():
                    info = tarfile.TarInfo(
                        "folder.x/%s%05d.%s" % ("long" * (60 if i == 7 else 1), i, ending)
                    )
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        found = joined(memroom.Stream(self.path("t.tar"), batch_size=32))
        self.assertEqual(len(found["__key__"]), 300)
        self.assertTrue(found["__key__"][5].endswith("long00005"))
        for i in range(300):
            self.assertEqual(found["img.png"][i], bytes([i % 256]) * (i * 7 % 5000))
            self.assertEqual(found["cls"][i], None if i % 10 == 0 else str(i).encode())

    def test_tfrecord(self):
        def varint(n):
            out = b""
            while n > 127:
                out, n = out + bytes([n & 127 | 128]), n >> 7
            return out + bytes([n])

        def field(number, content):
            return varint(number << 3 | 2) + varint(len(content)) + content

        def example(features):
            entries = b""
            for name, (kind, values) in features.items():
                if kind == 1:
                    packed = b"".join(field(1, v) for v in values)
                elif kind == 2:
                    packed = field(1, struct.pack("<%df" % len(values), *values))
                else:
                    packed = field(1, b"".join(varint(v & 2**64 - 1) for v in values))
                feature = field(2, field(kind, packed))
                entries += field(1, field(1, name.encode()) + feature)
            return field(1, entries)

        table = []
        for n in range(256):
            c = n
            for _ in range(8):
                c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
            table.append(c)

        def masked(data):
            c = 0xFFFFFFFF
            for byte in data:
                c = table[(c ^ byte) & 255] ^ c >> 8
            c ^= 0xFFFFFFFF
            return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF

        records = [
            example(
                {
                    "label": (3, [i - 2]),
                    "x": (2, [0.5 * i]),
                    "image": (1, [b"img%d" % i]),
                    "ids": (3, list(range(i % 4))),
                }
            )
            for i in range(50)
        ]
        path = self.path("t.tfrecord")
        with open(path, "wb") as file:
            for r in records:
                head = struct.pack("<Q", len(r))
                file.write(
                    head + struct.pack("<I", masked(head)) + r + struct.pack("<I", masked(r))
                )
        found = joined(memroom.Stream(path, batch_size=7))
        self.assertEqual(found["label"].tolist(), [i - 2 for i in range(50)])
        self.assertEqual(found["x"].tolist(), [0.5 * i for i in range(50)])
        self.assertEqual(found["image"].tolist(), [b"img%d" % i for i in range(50)])
        self.assertEqual(
            [v.tolist() for v in found["ids"]], [list(range(i % 4)) for i in range(50)]
        )
        size = os.path.getsize(path)
        os.truncate(path, size - 5)
        with self.assertRaisesRegex(memroom.FeedError, r"row 49 \(offset \d+\): is cut off"):
            list(memroom.Stream(path))
        self.assertEqual(len(joined(memroom.Stream(path, skip_bad=True))["x"]), 49)

    def test_several_files(self):
        for i in range(3):
            mixed(1000, i).to_csv(self.path("p%d.csv" % i), index=False)
        whole = pandas.concat([mixed(1000, i) for i in range(3)])
        found = joined(memroom.Stream(self.path("p*.csv"), batch_size=700))
        numpy.testing.assert_array_equal(found["id"], whole["id"])
        with open(self.path("q0.csv"), "w") as file:
            file.write("a\n1\n")
        with open(self.path("q1.csv"), "w") as file:
            file.write("a\n1.5\n\n")
        self.assertEqual(joined(memroom.Stream(self.path("q*.csv")))["a"].tolist(), [1.0, 1.5])
        with self.assertRaisesRegex(memroom.FeedError, "no file matches"):
            list(memroom.Stream(self.path("nothing*.csv")))
        with self.assertRaisesRegex(memroom.FeedError, "columns"):
            list(memroom.Stream([self.path("p0.csv"), self.path("q0.csv")]))
        with self.assertRaisesRegex(memroom.FeedError, 'no column "zz"'):
            list(memroom.Stream(self.path("p0.csv"), columns=["zz"]))


def identities(arguments):
    path, options = arguments
    return [batch["id"] for batch in memroom.Stream(path, **options)]


class Order(Case):
    def setUp(self):
        super().setUp()
        self.rows = 200_000
        self.file = self.path("o.parquet")
        frame = {
            "id": numpy.arange(self.rows),
            **{"x%d" % i: numpy.ones(self.rows) for i in range(8)},
        }
        pyarrow.parquet.write_table(pyarrow.table(frame), self.file, row_group_size=10_000)
        self.options = {
            "batch_size": 512,
            "shuffle": True,
            "seed": 7,
            "window": "4MiB",
            "columns": ["id"],
        }

    def stream(self, **options):
        return memroom.Stream(self.file, **{**self.options, **options})

    def digest(self, batches):
        return hashlib.sha256(b"".join(b.tobytes() for b in batches)).hexdigest()

    def test_order_is_the_same_whatever_reads_it(self):
        whole = [b["id"] for b in self.stream()]
        self.assertEqual(sorted(numpy.concatenate(whole).tolist()), list(range(self.rows)))
        expected = self.digest(whole)
        for budget in ("64MiB", "128MiB", "512MiB"):
            self.assertEqual(self.digest([b["id"] for b in self.stream(budget=budget)]), expected)
        for world in (2, 3, 4):
            ranks = [self.stream(rank=r, world=world, even_ranks=False) for r in range(world)]
            parts = [[b["id"] for b in rank] for rank in ranks]
            self.assertEqual(sum(map(len, parts)), len(whole))
            woven = [parts[k % world][k // world] for k in range(len(whole))]
            self.assertEqual(self.digest(woven), expected)
        for options in ({"prefetch": 1}, {"prefetch": 9}, {"copy": False}, {"transport": "copy"}):
            self.assertEqual(
                self.digest([b["id"].copy() for b in self.stream(**options)]), expected
            )
        again = self.stream()
        first, second = [b["id"] for b in again], [b["id"] for b in again]
        self.assertEqual(self.digest(first), expected)
        self.assertNotEqual(self.digest(second), expected)
        self.assertNotEqual(self.digest([b["id"] for b in self.stream(seed=8)]), expected)
        plain = numpy.concatenate([b["id"] for b in self.stream(shuffle=False)])
        numpy.testing.assert_array_equal(plain, numpy.arange(self.rows))

    def test_ranks_in_processes_at_once(self):
        whole = self.digest([b["id"] for b in self.stream()])
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            work = [
                (self.file, {**self.options, "rank": r, "world": 4, "even_ranks": False})
                for r in range(4)
            ]
            parts = pool.map(identities, work)
        count = sum(map(len, parts))
        self.assertEqual(self.digest([parts[k % 4][k // 4] for k in range(count)]), whole)

    def test_resume_anywhere_with_another_world(self):
        whole = [b["id"] for b in self.stream()]
        for at in (0, 1, 100, len(whole) - 1):
            stream = self.stream()
            batches = iter(stream)
            for _ in range(at):
                next(batches)
            state = json.loads(json.dumps(stream.state_dict()))
            del batches
            rest = []
            for world in (1, 3):
                streams = [self.stream(rank=r, world=world, even_ranks=False) for r in range(world)]
                for s in streams:
                    s.load_state_dict(state)
                parts = [[b["id"] for b in s] for s in streams]
                rest = [parts[k % world][k // world] for k in range(sum(map(len, parts)))]
                self.assertEqual(self.digest(rest), self.digest(whole[at:]))
        other = self.stream(seed=9)
        with self.assertRaisesRegex(ValueError, "another order"):
            other.load_state_dict(state)

    def test_kill_and_resume(self):
        program = (
            "import json, sys, os, memroom\n"
            "s = memroom.Stream(sys.argv[1], **json.loads(sys.argv[2]))\n"
            "if os.path.exists(sys.argv[3]): s.load_state_dict(json.load(open(sys.argv[3])))\n"
            "for batch in s:\n"
            "    print(' '.join(map(str, batch['id'])))\n"
            "    open(sys.argv[3] + '.new', 'w').write(json.dumps(s.state_dict()))\n"
            "    os.replace(sys.argv[3] + '.new', sys.argv[3]); print('saved', flush=True)\n"
            "print('end', flush=True)\n"
        )
        whole = numpy.concatenate([b["id"] for b in self.stream()])
        got, state = [], self.path("state.json")
        rng = numpy.random.default_rng(5)
        for attempt in range(50):
            process = subprocess.Popen(
                [sys.executable, "-c", program, self.file, json.dumps(self.options), state],
                stdout=subprocess.PIPE,
                text=True,
            )
            limit = int(rng.integers(1, 60)) if attempt < 10 else 10**9
            ended, pending, count = False, None, 0
            for line in process.stdout:
                if line == "saved\n":
                    got.extend(map(int, pending))
                    count += 1
                    if count == limit:
                        process.send_signal(signal.SIGSTOP)  # nothing more is saved behind our back
                        process.send_signal(signal.SIGKILL)
                        break
                elif line == "end\n":
                    ended = True
                else:
                    pending = line.split()
            process.stdout.close()
            process.wait()
            if ended:
                break
            with open(state) as file:  # it may have saved once more than it could say
                done = json.load(file)["batch"]
            got = (
                whole[: done * self.options["batch_size"]].tolist()
                if len(got) < done * 512
                else got
            )
        numpy.testing.assert_array_equal(got, whole)

    def test_torch_loader(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs torch")
        whole = self.digest([b["id"] for b in self.stream()])
        for workers in (0, 1, 2, 4):
            loader = torch.utils.data.DataLoader(
                self.stream().torch(), batch_size=None, num_workers=workers
            )
            self.assertEqual(self.digest([b["id"].numpy() for b in loader]), whole)


class Budget(Case):
    def test_arrow_batches_larger_than_the_budget(self):
        rows = 1_500_000
        table = pyarrow.table({"id": numpy.arange(rows), "x": numpy.arange(rows) / 7})
        with pyarrow.OSFile(self.path("plain.arrow"), "wb") as file:
            with pyarrow.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=rows)
        with pyarrow.OSFile(self.path("s.arrows"), "wb") as file:
            with pyarrow.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=rows)
        for how in ("lz4", "zstd"):
            path = self.path(how + ".feather")
            pyarrow.feather.write_feather(table, path, compression=how, chunksize=rows)
        for name in ("plain.arrow", "s.arrows", "lz4.feather", "zstd.feather"):
            stream = memroom.Stream(
                self.path(name), batch_size=8192, budget="48MiB", window="4MiB", shuffle=True
            )
            found = joined(stream)
            numpy.testing.assert_array_equal(numpy.sort(found["id"]), numpy.arange(rows))
            numpy.testing.assert_array_equal(found["x"], found["id"] / 7)
            self.assertLessEqual(stream.stats["server"]["peak"], 48 << 20, name)

    def test_peak_stays_below_in_every_format(self):
        frame = mixed(300_000)
        frame.to_csv(self.path("a.csv"), index=False)
        frame.to_json(self.path("a.jsonl"), orient="records", lines=True)
        frame.to_parquet(self.path("a.parquet"))
        pyarrow.feather.write_feather(frame, self.path("a.arrow"))
        numpy.save(self.path("a.npy"), numpy.zeros((1_000_000, 16), "f4"))
        for name in ("a.csv", "a.jsonl", "a.parquet", "a.arrow", "a.npy"):
            for budget in (64 << 20, 128 << 20):
                stream = memroom.Stream(self.path(name), budget=budget, shuffle=True)
                rows = sum(len(next(iter(b.values()))) for b in stream)
                self.assertEqual(rows, 1_000_000 if name == "a.npy" else 300_000)
                self.assertLessEqual(stream.stats["server"]["peak"], budget, name)
                self.assertIn("waited", stream.report())

    def test_what_does_not_fit_is_said(self):
        numpy.save(self.path("a.npy"), numpy.zeros((40, 1 << 20), "f4"))
        with self.assertRaisesRegex(memroom.FeedError, "a batch takes .*give at least [0-9.]+.iB"):
            list(memroom.Stream(self.path("a.npy"), batch_size=32, budget="64MiB"))
        numpy.save(self.path("b.npy"), numpy.zeros((2, 20 << 20), "f4"))
        with self.assertRaisesRegex(
            memroom.FeedError, "row 0: a block of rows takes 80MiB.*at least"
        ):
            list(memroom.Stream(self.path("b.npy"), batch_size=1, budget="64MiB"))
        with self.assertRaisesRegex(memroom.FeedError, "window of 64MiB does not fit"):
            list(memroom.Stream(self.path("a.npy"), window="64MiB", budget="64MiB"))
        with self.assertRaisesRegex(memroom.FeedError, "too small"):
            list(memroom.Stream(self.path("a.npy"), budget="8MiB"))
        with self.assertRaisesRegex(ValueError, "not a size"):
            memroom.Stream(self.path("a.npy"), budget="much")


class BadInput(Case):
    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def test_rows_are_named(self):
        ragged = self.write("r.csv", "a,b\n1,2\n3\n4,5,6\n7,8\n")
        with self.assertRaisesRegex(
            memroom.FeedError, r"r.csv: row 1 \(offset 8\): has 1 cell for 2 columns"
        ):
            list(memroom.Stream(ragged))
        stream = memroom.Stream(ragged, skip_bad=True)
        self.assertEqual(joined(stream)["a"].tolist(), [1, 7])
        self.assertEqual(stream._answer["skipped"], 2)
        bad = self.write("b.csv", "a,b\n1,2\nx,3\n")
        with self.assertRaisesRegex(memroom.FeedError, r"b.csv: row 1 .*\"x\" is no <f8"):
            list(memroom.Stream(bad, types={"a": "float64"}))
        lines = self.write("b.jsonl", '{"a": 1}\n{"a": \n')
        with self.assertRaisesRegex(memroom.FeedError, r"b.jsonl: row 1 \(offset 9\): is not JSON"):
            list(memroom.Stream(lines))

    def test_rare_texts_among_numbers(self):
        numbers = self.write("n.csv", "a,b\n" + "1,2.5\n" * 1000 + "x1,2.5\n" + "2,?\n")
        with self.assertRaisesRegex(memroom.FeedError, r"row 1000 \(offset 6004\): .*\"x1\""):
            list(memroom.Stream(numbers))
        stream = memroom.Stream(numbers, skip_bad=True)
        self.assertEqual(len(joined(stream)["a"]), 1000)
        self.assertEqual(stream.skipped, 2)
        self.assertEqual(stream.schema[0]["dtype"], "<i8")
        typed = memroom.Stream(numbers, types={"a": "str", "b": "str"})
        self.assertEqual(joined(typed)["a"][1000], "x1")
        lines = self.write("n.jsonl", '{"a": 1}\n' * 500 + '{"a": "y"}\n' + '{"a": 2.5}\n')
        with self.assertRaisesRegex(memroom.FeedError, r"row 500 \(offset 4500\): .*y"):
            list(memroom.Stream(lines))
        stream = memroom.Stream(lines, skip_bad=True)
        self.assertEqual(joined(stream)["a"][-2:].tolist(), [1, 2.5])
        codes = self.write("c.csv", "a\n" + "12\n" * 60 + "7B\n" * 60)  # texts, not mistakes
        self.assertEqual(joined(memroom.Stream(codes))["a"][100], "7B")

    def test_what_is_damaged_is_left_out_by_choice(self):
        frame = mixed(3000)
        for name in ("a.parquet", "b.parquet", "c.parquet"):
            frame.to_parquet(self.path(name), row_group_size=1000, compression="none")
        os.truncate(self.path("b.parquet"), 5000)
        with open(self.path("c.parquet"), "r+b") as file:
            file.seek(os.path.getsize(self.path("c.parquet")) // 2)
            file.write(b"\xff" * 3000)
        with self.assertRaisesRegex(memroom.FeedError, r"b\.parquet"):
            list(memroom.Stream(self.path("*.parquet")))
        stream = memroom.Stream(self.path("*.parquet"), skip_bad=True, shuffle=True)
        found = joined(stream)["id"]
        self.assertGreaterEqual(len(found), 4000)
        self.assertEqual(len(found) + stream.skipped, 6000)
        self.assertEqual(len(stream.bad_files), 1)
        self.assertIn("b.parquet", stream.bad_files[0])

    def test_a_state_of_other_data_is_refused(self):
        path = self.write("s.csv", "a\n" + "1\n" * 3000)
        stream = memroom.Stream(path, batch_size=100)
        batches = iter(stream)
        next(batches)
        state = json.loads(json.dumps(stream.state_dict()))
        batches.close()
        self.write("s.csv", "a\n" + "1\n" * 2000)
        other = memroom.Stream(path, batch_size=100)
        other.load_state_dict(state)
        with self.assertRaisesRegex(memroom.FeedError, "data has changed since the state"):
            list(other)

    def test_truncated_files(self):
        frame = mixed(20_000)
        frame.to_parquet(self.path("t.parquet"))
        pyarrow.feather.write_feather(frame, self.path("t.arrow"))
        numpy.save(self.path("t.npy"), numpy.zeros(10_000))
        with tarfile.open(self.path("t.tar"), "w") as tar:
            info = tarfile.TarInfo("a.bin")
            info.size = 100_000
            tar.addfile(info, io.BytesIO(bytes(100_000)))
        with gzip.open(self.path("t.csv.gz"), "wt") as file:
            frame.to_csv(file, index=False)
        with tarfile.open(self.path("u.tar"), "w") as tar:  # cut where a member ends
            for i in range(8):
                info = tarfile.TarInfo("%d.bin" % i)
                info.size = 512
                tar.addfile(info, io.BytesIO(bytes(512)))
        os.truncate(self.path("u.tar"), 6 * 1024)
        with self.assertRaisesRegex(memroom.FeedError, r"u\.tar: row 5: offset 6144: .*cut off"):
            list(memroom.Stream(self.path("u.tar")))
        self.assertEqual(len(joined(memroom.Stream(self.path("u.tar"), skip_bad=True))["bin"]), 5)
        for name in ("t.parquet", "t.arrow", "t.npy", "t.tar", "t.csv.gz"):
            os.truncate(self.path(name), os.path.getsize(self.path(name)) // 2)
            with self.assertRaisesRegex(memroom.FeedError, name.replace(".", r"\.")):
                list(memroom.Stream(self.path(name)))

    def test_files_that_change_or_vanish(self):
        path = self.path("c.csv")
        mixed(200_000).to_csv(path, index=False)
        stream = memroom.Stream(path, batch_size=64, shuffle=True, window="1MiB")
        batches = iter(stream)
        next(batches)
        with open(path, "a") as file:
            file.write("1,2,3,4,5,True,x\n")
        with self.assertRaisesRegex(memroom.FeedError, "has changed since it was indexed"):
            list(batches)
        with self.assertRaisesRegex(memroom.FeedError, "there is no file"):
            list(memroom.Stream(self.path("gone.csv")))

    def test_a_server_that_is_killed_is_said(self):
        path = self.path("k.npy")
        numpy.save(path, numpy.zeros((3_000_000, 8)))
        stream = memroom.Stream(path, batch_size=256)
        batches = iter(stream)
        next(batches)
        from memroom import wire

        wire._started[-1].kill()
        with self.assertRaisesRegex(memroom.FeedError, "the feed server ended"):
            list(batches)
        self.assertEqual(
            sum(len(b["data"]) for b in memroom.Stream(path, batch_size=65536)), 3_000_000
        )

    def test_the_server_ends_when_its_consumers_have(self):
        path = self.path("e.npy")
        numpy.save(path, numpy.zeros((100_000, 8)))
        program = (
            "import memroom, os, sys; from memroom import wire\n"
            "b = iter(memroom.Stream(sys.argv[1], batch_size=16)); next(b)\n"
            "print(wire._started[-1].pid, flush=True); os.kill(os.getpid(), 9)\n"
        )
        done = subprocess.run([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
        pid = int(done.stdout)
        for _ in range(600):
            try:
                with open("/proc/%d/stat" % pid) as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return
            except OSError:
                return
            time.sleep(0.1)
        self.fail("the server outlived its only consumer by a minute")

    def test_consumers_that_never_give_back_hold_up_nobody(self):
        """One keeps its batch, one is stopped in the middle, one dies with a batch in its hands:
        all of the same server, whose budget has room for few batches."""
        path, rows = self.path("f.npy"), 60_000
        numpy.save(path, numpy.arange(rows * 8.0).reshape(rows, 8))

        def stream():
            return memroom.Stream(path, batch_size=4096, budget="48MiB", window="1MiB", copy=False)

        program = (
            "import memroom, os, sys, signal\n"
            "s = memroom.Stream(sys.argv[1], batch_size=4096, budget='48MiB', window='1MiB',\n"
            "                   copy=False)\n"
            "b = iter(s); next(b); print('has one', flush=True)\n"
            "os.kill(os.getpid(), getattr(signal, sys.argv[2]))\n"
        )
        keeper = iter(stream())
        first = next(keeper)["data"]
        others = []
        for name in ("SIGSTOP", "SIGKILL"):
            command = [sys.executable, "-c", program, path, name]
            others.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            self.assertEqual(others[-1].stdout.readline(), b"has one\n")
        try:
            found = numpy.concatenate([batch["data"].copy() for batch in stream()])
            numpy.testing.assert_array_equal(found, numpy.load(path))
            numpy.testing.assert_array_equal(first, numpy.load(path)[:4096])  # still its own
            self.assertEqual(sum(len(batch["data"]) for batch in keeper), rows - 4096)
        finally:
            for process in others:
                process.kill()
                process.wait()
                process.stdout.close()
        if os.path.isdir("/dev/shm"):  # folders there are those of other tests
            left = [e.name for e in os.scandir("/dev/shm") if "memroom" in e.name and e.is_file()]
            self.assertEqual(left, [])


class Frameworks(Case):
    def setUp(self):
        super().setUp()
        self.frame = mixed(4000)
        self.frame.to_parquet(self.path("f.parquet"))

    def stream(self, **options):
        options = {"batch_size": 256, "shuffle": True, "seed": 3, **options}
        return memroom.Stream(self.path("f.parquet"), **options)

    def test_torch_state(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs torch")
        whole = [b["id"] for b in self.stream().torch()]
        data = self.stream().torch()
        batches = iter(data)
        for _ in range(5):
            next(batches)
        again = self.stream().torch()
        again.load_state_dict(data.state_dict())
        rest = [b["id"] for b in again]
        self.assertTrue(torch.equal(torch.cat(whole[5:]), torch.cat(rest)))
        self.assertEqual(len(again), len(whole))
        self.assertEqual(next(iter(self.stream().torch()))["f"].dtype, torch.float64)

    def test_a_model_learns_the_same_as_in_memory(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs torch")
        table = {n: torch.tensor(self.frame[n].to_numpy()) for n in ("f", "g", "id")}

        def losses(batches):
            torch.manual_seed(0)
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            found = []
            for batch in batches:
                x = torch.stack([batch["f"].float(), batch["g"]], 1)
                loss = (model(x).squeeze(1) - batch["f"].float() * 2).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
            return found

        places = [b["id"] for b in self.stream()]
        in_memory = ({n: v[torch.from_numpy(p)] for n, v in table.items()} for p in places)
        self.assertEqual(losses(self.stream().torch()), losses(in_memory))

    def test_epochs_with_workers(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs torch")
        stream = self.stream()
        plain = [numpy.concatenate([b["id"] for b in stream]).tolist() for _ in range(3)]
        for keep in (False, True):
            loader = torch.utils.data.DataLoader(
                self.stream().torch(), batch_size=None, num_workers=2, persistent_workers=keep
            )
            found = [torch.cat([b["id"] for b in loader]).tolist() for _ in range(3)]
            self.assertEqual(found, plain)
        data = self.stream().torch()
        loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2)
        for epoch in (2, 0):
            data.set_epoch(epoch)
            self.assertEqual(torch.cat([b["id"] for b in loader]).tolist(), plain[epoch])

    def test_stateful_loader(self):
        try:
            import torch
            from torchdata.stateful_dataloader import StatefulDataLoader
        except ImportError:
            self.skipTest("needs torchdata")

        def loader(workers):
            data = self.stream(columns=["id"]).torch()
            return StatefulDataLoader(data, batch_size=None, num_workers=workers)

        def ids(batches):
            return [b["id"].tolist() for b in batches]

        for workers in (0, 2):
            whole = ids(loader(workers))
            first = loader(workers)
            batches = iter(first)
            got = [next(batches)["id"].tolist() for _ in range(5)]
            second = loader(workers)
            second.load_state_dict(first.state_dict())
            batches = iter(second)
            got += [next(batches)["id"].tolist() for _ in range(4)]
            third = loader(workers)
            third.load_state_dict(second.state_dict())
            self.assertEqual(got + ids(third), whole)
            after = torch.cat([b["id"] for b in third])
            self.assertEqual(sorted(after.tolist()), list(range(4000)))
            self.assertNotEqual(after.tolist(), [i for batch in whole for i in batch])

    def test_arrow(self):
        found = pyarrow.Table.from_batches(list(self.stream(shuffle=False).arrow()))
        self.assertEqual(found["word"].to_pylist(), list(self.frame["word"]))
        self.assertEqual(found["id"].to_pylist(), list(self.frame["id"]))

    def test_hf(self):
        try:
            import datasets  # noqa: F401
        except ImportError:
            self.skipTest("needs datasets")
        rows = list(self.stream(shuffle=False, columns=["id", "word"]).hf())
        self.assertEqual([r["word"] for r in rows], list(self.frame["word"]))

    def test_arrays_of_hugging_face(self):
        try:
            import datasets
        except ImportError:
            self.skipTest("needs datasets")
        rng = numpy.random.default_rng(7)
        arrays = {"a": rng.random((900, 2, 3), "f4"), "b": rng.integers(0, 9, (900, 1, 2, 2), "u1")}
        features = datasets.Features(
            a=datasets.Array2D((2, 3), "float32"), b=datasets.Array3D((1, 2, 2), "uint8")
        )
        kept = datasets.Dataset.from_dict(arrays, features=features)
        kept.save_to_disk(self.path("kept"))
        found = joined(memroom.Stream(self.path("kept/*.arrow"), batch_size=100))
        for name, values in arrays.items():
            self.assertEqual(found[name].dtype, values.dtype)
            numpy.testing.assert_array_equal(found[name], values)

    def test_tensorflow_and_keras(self):
        try:
            import keras
            import tensorflow  # noqa: F401
        except ImportError:
            self.skipTest("needs tensorflow and keras")
        expected = numpy.concatenate([b["id"] for b in self.stream()])
        found = numpy.concatenate([b["id"].numpy() for b in self.stream().tf()])
        numpy.testing.assert_array_equal(found, expected)
        words = numpy.concatenate([b["word"].numpy() for b in self.stream(shuffle=False).tf()])
        self.assertEqual([w.decode() for w in words], list(self.frame["word"]))
        data = self.stream(columns=["f", "g"]).keras(x="f", y="g")
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        history = model.fit(data, epochs=2, verbose=0, shuffle=False)
        self.assertEqual(len(history.history["loss"]), 2)
        seen = numpy.concatenate([data[i][0] for i in (*range(1, len(data)), 0)])
        numpy.testing.assert_array_equal(numpy.sort(seen), numpy.sort(self.frame["f"]))


class Ranges(BaseHTTPRequestHandler):
    """Serves one file by ranges, with trouble: some answers are 503, some stop in the middle."""

    content = b""
    requests = 0
    down = False
    lock = threading.Lock()

    def do_GET(self):
        with self.lock:
            Ranges.requests += 1
            number = Ranges.requests
        if Ranges.down or number % 7 == 3:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, last = map(int, self.headers["Range"][6:].split("-"))
        part = self.content[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", "bytes %d-%d/%d" % (first, last, len(self.content)))
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        if number % 5 == 2:
            part = part[: len(part) // 2]
            self.close_connection = True
        self.wfile.write(part)

    def log_message(self, *args):
        pass


class Web(Case):
    def test_ranges_with_retries(self):
        frame = mixed(20_000)
        out = io.BytesIO()
        frame.to_parquet(out)
        Ranges.content, Ranges.down = out.getvalue(), False
        server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = "http://127.0.0.1:%d/a.parquet" % server.server_port
        found = joined(memroom.Stream(address))
        numpy.testing.assert_array_equal(found["f"], frame["f"])
        Ranges.down = True
        with self.assertRaisesRegex(memroom.FeedError, "gave up after 5 tries.*503"):
            list(memroom.Stream(address, seed=2, budget="100MiB"))
        with self.assertRaisesRegex(memroom.FeedError, "503") as caught:
            list(memroom.Stream(address.replace("//", "//me:s3cret@"), budget="100MiB"))
        self.assertNotIn("s3cret", str(caught.exception))
        server.shutdown()
        server.server_close()


class Docs(Case):
    """Every piece of Python in docs/feed.md does what is written beside it."""

    def setUp(self):
        super().setUp()
        here = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(here, os.pardir, os.pardir, "docs", "feed.md")) as file:
            self.text = file.read()
        before = os.getcwd()
        os.chdir(self.folder.name)
        self.addCleanup(os.chdir, before)
        os.mkdir("data")
        rows = numpy.arange(3000)
        frame = pandas.DataFrame({n: rows / 3000 for n in ("x", "y", "a", "b", "label")})
        frame.to_parquet("data/one.parquet")

    def test_blocks(self):
        import torch

        class MyDataset(torch.utils.data.Dataset):
            def __init__(self, samples):
                self.samples = samples

            def __len__(self):
                return len(self.samples)

            def __getitem__(self, index):
                return self.samples[index]

        blocks = re.findall(r"^```python\n(.*?)^```", self.text, re.M | re.S)
        self.assertEqual(len(blocks), 3)
        plain = [{"x": float(i), "name": "n%d" % i} for i in range(100)]
        loader = torch.utils.data.DataLoader
        names = {"samples": plain, "DataLoader": loader, "MyDataset": MyDataset}
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            for block in blocks[:2]:
                exec(block, names)
        names["loader"].num_workers = 2
        self.assertEqual(sorted(x for b in names["loader"] for x in b["x"].tolist()), [*range(100)])
        self.assertIsInstance(names["samples"], memroom.sharing.SharedList)
        self.assertIsInstance(names["batch"]["x"], numpy.ndarray)
        self.assertRegex(said.getvalue(), r"3000 rows .*waited [\d.]+ %.*server's peak was")
        self.images(blocks[2], names)

    def images(self, block, names):
        from PIL import Image

        for kind in ("cat", "dog"):
            os.makedirs(os.path.join("photos", "train", kind))
            for i in range(4):
                Image.new("RGB", (9 + i, 7)).save("photos/train/%s/%d.png" % (kind, i))
        exec(block, names)
        (x, y), *more = names["loader"]
        self.assertEqual(
            (tuple(x.shape), sorted(y.tolist())), ((8, 224, 224, 3), [0] * 4 + [1] * 4)
        )
        self.assertEqual(more, [])

    def test_the_table_of_frameworks(self):
        import keras
        import torch

        table = self.text.split("| for | write |")[1].split("\n\n")[0]
        code = re.findall(r"^\| [\w. ]+ \| `([^`]+)`", table, re.M)
        self.assertEqual(len(code), 5)
        model = keras.Sequential([keras.layers.Dense(1)])

        class OfColumns(keras.Model):
            """x comes as a dict of columns."""

            def __init__(self):
                super().__init__()
                self.inner = model

            def call(self, x):
                values = x.values() if isinstance(x, dict) else x
                return self.inner(keras.ops.stack([keras.ops.reshape(v, (-1,)) for v in values], 1))

        trained = OfColumns()
        trained.compile(optimizer="sgd", loss="mse")
        for line in code:
            with self.subTest(line):
                stream = memroom.Stream("data/*.parquet", batch_size=1000, shuffle=True)
                loader = torch.utils.data.DataLoader
                made = eval(line, {"stream": stream, "DataLoader": loader, "model": trained})
                if not isinstance(made, keras.callbacks.History):
                    self.assertTrue(any(True for _ in made))


class Convert(Case):
    """`memroom feed convert`, read by pyarrow and NumPy."""

    def convert(self, source, target, *flags):
        command = [os.environ["MEMROOM_BINARY"], "feed", "convert", self.path(source)]
        command += ["--to", self.path(target), "--json", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr)
        return json.loads(done.stdout)

    def every_kind(self, rows):
        """A table with every type that a file can have, missing values among them."""
        numbers = numpy.arange(rows)
        gone = numbers % 7 == 3
        columns = {
            name: pyarrow.array((numbers % 100).astype(name))
            for name in (
                "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32"
            ).split()
        }
        columns["big"] = pyarrow.array(numbers.astype("u8") + 2**63)
        columns["f"] = pyarrow.array(numbers / 7)
        columns["flag"] = pyarrow.array(numbers % 3 == 0)
        columns["text"] = pyarrow.array(
            [None if i % 7 == 3 else "é%d" % i * (i % 5) for i in range(rows)]
        )
        columns["raw"] = pyarrow.array([b"\x00%d" % i if i % 5 else None for i in range(rows)])
        columns["list"] = pyarrow.array(
            [None if i % 7 == 3 else list(range(i % 4)) for i in range(rows)],
            pyarrow.list_(pyarrow.int32()),
        )
        for unit in ("s", "ms", "us", "ns"):
            times = pyarrow.array(numbers * 1_000_003, pyarrow.timestamp(unit), mask=gone)
            columns["at " + unit] = times
        columns["day"] = pyarrow.array(numbers.astype("i4"), pyarrow.date32(), mask=gone)
        fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(numpy.arange(2.0 * rows)), 2)
        columns["pair"] = fixed
        return pyarrow.table(columns)

    def test_parquet(self):
        table = self.every_kind(20_000)
        pyarrow.feather.write_feather(table, self.path("a.arrow"), compression="uncompressed")
        said = self.convert("a.arrow", "b.parquet", "--budget", "64MiB", "--batch", "300")
        self.assertEqual(said["rows"], 20_000)
        self.assertLess(said["report"]["peak"], 64 << 20)
        found = pyarrow.parquet.read_table(self.path("b.parquet"))
        for name in table.column_names:
            with self.subTest(name):
                self.assertEqual(found[name].to_pylist(), table[name].to_pylist())
        for name in ("int8", "uint16", "uint64", "float16", "float32", "flag", "at us", "day"):
            self.assertEqual(found[name].type, table[name].type)
        # and our own stream reads it as it reads what it was made of
        ours, theirs = (joined(memroom.Stream(self.path(n))) for n in ("b.parquet", "a.arrow"))
        for name in set(theirs) - {"pair"}:
            if theirs[name].dtype != object:
                numpy.testing.assert_array_equal(ours[name], theirs[name], name)
                continue
            for one, other in zip(ours[name], theirs[name]):
                self.assertTrue(one is other or numpy.array_equal(one, other), name)

    def test_arrays_of_several_axes(self):
        values = numpy.random.default_rng(5).random((700, 3, 4), "f4")
        numpy.save(self.path("a.npy"), values)
        self.convert("a.npy", "b.arrow", "--batch", "100")
        found = joined(memroom.Stream(self.path("b.arrow")))["data"]
        self.assertEqual(found.dtype, values.dtype)
        numpy.testing.assert_array_equal(found, values)
        theirs = pyarrow.feather.read_table(self.path("b.arrow"))["data"]
        self.assertEqual(theirs.to_pylist(), values.tolist())

    def test_row_groups_stay_small(self):
        numpy.save(self.path("a.npy"), numpy.random.default_rng(1).random((400_000, 16), "f4"))
        said = self.convert("a.npy", "b.parquet", "--budget", "64MiB", "--shuffle")
        self.assertLess(said["report"]["peak"], 64 << 20)
        about = pyarrow.parquet.ParquetFile(self.path("b.parquet")).metadata
        self.assertGreater(about.num_row_groups, 2)
        lists = pyarrow.parquet.read_table(self.path("b.parquet"))["data"].combine_chunks()
        rows, plain = lists.flatten().to_numpy().reshape(-1, 16), numpy.load(self.path("a.npy"))
        self.assertFalse(numpy.array_equal(rows, plain))  # they are mixed
        numpy.testing.assert_array_equal(
            rows[numpy.lexsort(rows.T[:2])], plain[numpy.lexsort(plain.T[:2])]
        )

    def test_what_parquet_cannot_hold(self):
        numpy.save(self.path("a.npy"), numpy.zeros((50, 2, 3)))
        with self.assertRaisesRegex(ValueError, "an array of 2 dimensions, which Parquet"):
            self.convert("a.npy", "b.parquet")
        self.assertFalse(os.path.exists(self.path("b.parquet")))
        lasting = pyarrow.table({"d": pyarrow.array([1, 2], pyarrow.duration("s"))})
        pyarrow.feather.write_feather(lasting, self.path("a.arrow"), compression="uncompressed")
        with self.assertRaisesRegex(ValueError, "column d: there is no Parquet type for"):
            self.convert("a.arrow", "b.parquet")


if __name__ == "__main__":
    unittest.main()


class S3(Case):
    """Against a real server over the folder MEMROOM_TEST_BUCKETS: see feed/serve/s3_test.go."""

    def test_objects_and_patterns(self):
        buckets = os.environ["MEMROOM_TEST_BUCKETS"]
        folder = os.path.join(buckets, "data", "set one")
        os.makedirs(folder)
        frame = mixed(20_000)
        for i in range(4):
            part = frame[i * 5000 : (i + 1) * 5000]
            part.to_parquet(os.path.join(folder, "p+%d.parquet" % i), row_group_size=700)
            part.to_csv(os.path.join(folder, "c é%d.csv" % i), index=False)
        self.check(joined(memroom.Stream("s3://data/set one/p+*.parquet")), frame)
        lines = memroom.Stream("s3://data/set one/c *.csv", columns=["id", "f", "word"])
        self.check(joined(lines), frame[["id", "f", "word"]])
        one = memroom.Stream("s3://data/set one/p+2.parquet", shuffle=True, columns=["id"])
        self.assertEqual(sorted(joined(one)["id"]), list(range(10_000, 15_000)))
        with self.assertRaisesRegex(memroom.FeedError, "404"):
            list(memroom.Stream("s3://data/set one/none.parquet"))
        with self.assertRaisesRegex(memroom.FeedError, "no object matches"):
            list(memroom.Stream("s3://data/none*.parquet"))
        os.environ["AWS_SECRET_ACCESS_KEY"] = "wrong"
        try:
            with self.assertRaisesRegex(memroom.FeedError, "403"):
                list(memroom.Stream("s3://data/set one/p+0.parquet"))
        finally:
            os.environ["AWS_SECRET_ACCESS_KEY"] = "of-the-test"

    def test_an_object_that_changes(self):
        folder = os.path.join(os.environ["MEMROOM_TEST_BUCKETS"], "changing")
        os.makedirs(folder)
        path = os.path.join(folder, "a.csv")
        mixed(200_000).to_csv(path, index=False)
        stream = memroom.Stream("s3://changing/a.csv", batch_size=64, window="1MiB", shuffle=True)
        batches = iter(stream)
        next(batches)
        time.sleep(1.1)  # a server that makes no tags has times of whole seconds
        mixed(200_000, seed=2).to_csv(path, index=False)
        with self.assertRaisesRegex(memroom.FeedError, "has changed since it was indexed"):
            list(batches)
