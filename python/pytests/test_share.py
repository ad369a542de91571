"""memroom.share beside the plain objects, in this process, in forked and in spawned ones."""

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import unittest
import warnings

import memroom

try:
    import numpy
except ImportError:
    numpy = None

PLAIN = [
    [],
    (),
    {},
    [1, 2, 3],
    (1.5, -0.0, float("inf")),
    [2**70, 1],
    [True, None, 1, 2.0, 1 + 2j],
    ["", "a", "é", "日本", "\ud800"],
    [b"", b"\x00\xff"],
    [1, "two", b"three", [4, [5, {"six": (7,)}]]],
    [{1, 2}, frozenset([3]), bytearray(b"x"), range(3), Ellipsis],
    [{"id": i, "text": "t%d" % i, "boxes": [[1, 2, 3, 4]] * (i % 3)} for i in range(200)],
    {"a": 1, 2: [1, 2], None: None, (1, "x"): {}},
    {i: str(i) for i in range(10000)},
    {"key %d" % i: i for i in range(10000)},
    {(i, "a"): float(i) for i in range(5000)},
    {"train": [(i, "x" * (i % 7)) for i in range(20000)], "val": [(1, "y")]},
    [["deep"] * 20000, {"wide": list(range(20000))}],
    [["long", "z" * 100000]] * 3,
    [{}] * 20,
    [{"a": i, "b": None if i % 2 else [i]} for i in range(40)],
    [{"a": i, "b": i} if i % 2 else {"b": i, "a": i} for i in range(40)],  # another order of keys
    [{"a": i} if i else {"a": i, "b": 1} for i in range(40)],
    [{1: i, (2, "x"): 2.5, None: 2**70} for i in range(40)],
    [{"key %d" % k: k for k in range(100)} for i in range(20)],
    [{"x": i, "y": ["deep"] * (20000 if i == 7 else 1)} for i in range(20)],
]


def circular():
    first = []
    first.append(first)
    return first


class Plain(unittest.TestCase):
    def test_reads_as_before(self):
        for thing in PLAIN:
            shared = memroom.share(thing)
            self.assertTrue(shared == thing)
            self.assertTrue(thing == shared)
            self.assertFalse(shared != thing)
            self.assertEqual(len(shared), len(thing))
            self.assertEqual(list(shared), list(thing))
            self.assertEqual(list(reversed(shared)), list(reversed(thing)))
            self.assertTrue(pickle.loads(pickle.dumps(shared)) == thing)
            if len(thing) <= 100:
                self.assertEqual(repr(shared)[:20], repr(thing)[:20])
            self.assertLess(len(repr(memroom.share([0] * 1000))), 200)

    def test_indexing_and_slices(self):
        for thing in PLAIN:
            if isinstance(thing, dict):
                continue
            shared = memroom.share(thing)
            size = len(thing)
            for index in (0, 1, size // 2, size - 1, -1, -size):
                if -size <= index < size:
                    self.assertEqual(shared[index], thing[index])
            for wrong in (size, -size - 1):
                self.assertRaises(IndexError, lambda: shared[wrong])
            for cut in (slice(1, 3), slice(None, None, -1), slice(-3, None), slice(0, 99, 2)):
                self.assertTrue(shared[cut] == thing[cut])
                self.assertTrue(shared[cut][::-1] == thing[cut][::-1])
                self.assertTrue(pickle.loads(pickle.dumps(shared[cut])) == thing[cut])
            for element in thing[:3]:
                self.assertIn(element, shared)
                self.assertEqual(shared.index(element), thing.index(element))
                self.assertEqual(shared.count(element), thing.count(element))
        self.assertRaises(TypeError, lambda: memroom.share([1])["a"])
        self.assertNotIn(object(), memroom.share([1, 2]))

    def test_dicts(self):
        for thing in PLAIN:
            if not isinstance(thing, dict):
                continue
            shared = memroom.share(thing)
            self.assertEqual(list(shared.keys()), list(thing.keys()))
            self.assertTrue(all(a == b for a, b in zip(shared.values(), thing.values())))
            for key, value in thing.items():
                self.assertTrue(key in shared and shared[key] == value and shared.get(key) == value)
            self.assertNotIn("absent", shared)
            self.assertRaises(KeyError, lambda: shared["absent"])
            self.assertRaises(TypeError, lambda: shared[[]])
        many = memroom.share({i: i for i in range(5000)})
        self.assertTrue(many[3.0] == 3 and many[True] == 1)

    def test_changes_are_refused(self):
        samples, table = memroom.share([1, 2]), memroom.share({"a": 1})
        for change in (
            lambda: samples.append(3),
            lambda: samples.__setitem__(0, 3),
            lambda: samples.__delitem__(0),
            lambda: samples.sort(),
            lambda: samples.__iadd__([3]),
            lambda: samples[:1].extend([3]),
            lambda: table.update(b=2),
            lambda: table.pop("a"),
            lambda: table.__setitem__("a", 2),
        ):
            with self.assertRaisesRegex(TypeError, "shared with other processes.*copy"):
                change()
        self.assertEqual(samples + [3], [1, 2, 3])
        self.assertEqual(sorted(memroom.share([3, 1, 2])), [1, 2, 3])

    def test_elements_are_ordinary_objects(self):
        sample = memroom.share([{"ids": [1, 2]}])[0]
        self.assertIs(type(sample), dict)
        self.assertIs(type(sample["ids"]), list)

    def test_iterators_and_what_needs_no_sharing(self):
        self.assertEqual(list(memroom.share(i * i for i in range(5))), [0, 1, 4, 9, 16])
        for thing in ("text", b"bytes", 3, 2.5, None, range(4)):
            self.assertIs(memroom.share(thing), thing)
        shared = memroom.share([1])
        self.assertIs(memroom.share(shared), shared)
        self.assertEqual(memroom.share(circular())[0][0][0].__class__, list)

    def test_what_cannot_be_shared_is_named(self):
        with self.assertRaisesRegex(TypeError, "element 1: a function cannot be shared"):
            memroom.share([1, lambda: 0])
        with self.assertRaisesRegex(TypeError, "set has no place"):
            memroom.share({1, 2})
        with self.assertRaisesRegex(TypeError, "dataset.samples = memroom.share"):
            memroom.share(object())

    def test_folder_and_its_errors(self):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            shared = memroom.share(PLAIN[11], folder=folder)
            self.assertTrue(shared == PLAIN[11] and os.listdir(folder) == [])
        with self.assertRaisesRegex(OSError, "could not hold the data.*folder="):
            memroom.share([1], folder="/nonexistent")

    def test_descriptors_are_given_back(self):
        if not os.path.isdir("/proc/self/fd"):
            self.skipTest("no /proc")
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            shared = memroom.share(list(range(1000)))
            part = shared[3:]
            del shared
            self.assertEqual(part[0], 3)
            del part
            try:
                memroom.share([lambda: 0])
            except TypeError:
                pass
        gc.collect()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)


@unittest.skipIf(numpy is None, "needs numpy")
class Arrays(unittest.TestCase):
    def test_kinds_of_arrays(self):
        a = numpy.arange(24, dtype="f4").reshape(4, 6)
        for array in (
            a,
            a.T,
            a[:, ::2],
            a[::-1],
            numpy.array(5),
            numpy.zeros((0, 3)),
            numpy.array(["2020-01-01", "NaT"], "M8[s]"),
            numpy.array(["a", "bcd"]),
            numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
            a.astype(">i2"),
            a > 3,
            numpy.random.default_rng(1).normal(size=(300, 400)),
        ):
            for shared in (
                memroom.share(array),
                memroom.share([array])[0],
                memroom.share({"x": (array, 1)})["x"][0],
                pickle.loads(pickle.dumps(memroom.share(array))),
            ):
                self.assertIsInstance(shared, numpy.ndarray)
                numpy.testing.assert_array_equal(shared, array)
                self.assertEqual((shared.dtype, shared.shape), (array.dtype, array.shape))
                if array.size:
                    with self.assertRaisesRegex(ValueError, "read-only"):
                        shared[...] = shared
        shared = memroom.share(a)
        self.assertIs(type(shared[0]), numpy.ndarray)
        self.assertIs(type(shared + 1), numpy.ndarray)
        self.assertTrue((shared + 1).flags.writeable and shared.copy().flags.writeable)

    def test_arrays_of_objects(self):
        names = numpy.array(["a", "bb", None], dtype=object)
        shared = memroom.share(names)
        self.assertEqual(list(shared), list(names))
        numpy.testing.assert_array_equal(shared[numpy.array([2, 0])], names[[2, 0]])
        numpy.testing.assert_array_equal(shared[names == "a"], names[:1])
        with self.assertRaisesRegex(TypeError, "2 dimensions"):
            memroom.share(numpy.array([[None]], dtype=object))

    def test_arrays_that_mean_more_than_their_numbers(self):
        masked = numpy.ma.masked_array(numpy.zeros(90_000), numpy.arange(90_000) % 2 == 0)
        record = numpy.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
        for thing in (masked, record, numpy.matrix([[1, 2]])):
            with self.assertRaisesRegex(TypeError, "would be lost: share numpy.asarray"):
                memroom.share(thing)
            for inside in (memroom.share([thing])[0], memroom.share({"k": [thing, 1]})["k"][0]):
                self.assertIs(type(inside), type(thing))
                numpy.testing.assert_array_equal(inside, thing)
        self.assertEqual(memroom.share([masked])[0].mask.sum(), 45_000)
        self.assertEqual(memroom.share([record])[0].a.tolist(), [1])

    def test_samples_of_arrays(self):
        samples = [(numpy.full((2, 3), i, "f4"), i, {"mask": numpy.ones(2)}) for i in range(50)]
        shared = memroom.share(samples)
        for (a, i, c), (x, y, z) in zip(samples, shared):
            numpy.testing.assert_array_equal(a, x)
            self.assertTrue(i == y and type(y) is int)
            numpy.testing.assert_array_equal(c["mask"], z["mask"])
        flat = memroom.share([{"x": numpy.arange(3), "y": 1, "name": "n"}, numpy.arange(2), "z"])
        self.assertEqual(flat[0]["x"].tolist(), [0, 1, 2])
        self.assertEqual((flat[0]["y"], flat[0]["name"], flat[2]), (1, "n", "z"))
        self.assertEqual(flat[1].tolist(), [0, 1])

    def test_samples_that_are_alike(self):
        """Arrays of one shape lie in a stack. What differs in one sample must still come out."""

        def odd(i, value, other):
            return other if i == 17 else value

        row = numpy.arange
        kinds = {
            "pairs": lambda i: (row(3, dtype="i2") + i, i),
            "lists": lambda i: [row(5.0) * i, 0.5 * i, "text %d" % i],
            "dicts": lambda i: {"x": row(6).reshape(2, 3) + i, "y": i, "name": "n%d" % i},
            "alone": lambda i: numpy.full((2, 2), i, "f4"),
            "complex": lambda i: (numpy.full(3, i + 1j), numpy.array([i % 2 == 0] * 5)),
            "many numbers": lambda i: (row(4) + i, i, i, i, i, i),
            "large ints": lambda i: (row(4) + i, 2**70 + i),
            "truth": lambda i: (row(4) + i, i % 2 == 0),
            "turned": lambda i: (numpy.asfortranarray(row(6).reshape(2, 3)) + i, i),
            "another shape": lambda i: (odd(i, row(3), row(4)), i),
            "another type": lambda i: (odd(i, row(3), row(3.0)), i),
            "missing": lambda i: {"x": odd(i, row(3), None), "y": i},
            "empty": lambda i: (odd(i, row(3), row(0)), i),
            "mixed numbers": lambda i: (row(3), odd(i, i, 0.5)),
            "objects": lambda i: (row(3), {i}),
            "large": lambda i: (numpy.full(70000, i, "f4"), i),
            "beside much": lambda i: (row(3), ["deep"] * (20000 if i == 3 else 2)),
            "lengths": lambda i: {"x": row(i % 5), "y": i},
            "rows": lambda i: (numpy.full((i % 4, 3), i, "f4"), "n%d" % i),
            "sizes": lambda i: [numpy.full((1 + i % 4, 2, 1 + i % 3), i, "u1"), i],
            "sizes alone": lambda i: numpy.full((2, i % 3), i, "i2"),
            "none has any": lambda i: (numpy.zeros((0, 4)), i),
            "half are missing": lambda i: {"x": row(2 + i) if i % 2 else None, "y": row(3)},
            "sizes or missing": lambda i: (row(6).reshape(1 + i % 2, -1) if i % 5 else None, i),
            "all are missing": lambda i: {"x": None, "y": row(3)},
            "in one another": lambda i: {
                "image": row(12).reshape(2, 6) + i,
                "target": {"boxes": numpy.full((i % 3, 4), i), "size": (i, 2), "ids": [row(i), i]},
                "meta": {"name": "n%d" % i, "tags": ["a"] * (i % 2)},
            },
            "another key inside": lambda i: ({"x": row(3)} if i != 17 else {"z": row(3)}, i),
            "another kind inside": lambda i: ({"x": row(3)} if i != 17 else [row(3)], i),
            "deep": lambda i: [[[[[[row(3) + i]]]]]],
            "other dimensions": lambda i: (odd(i, row(4), row(4).reshape(2, 2)), i),
        }
        for name, make in kinds.items():
            plain = [make(i) for i in range(20)]
            keyed = memroom.share({"k%d" % i: sample for i, sample in enumerate(plain)})
            with self.subTest(name, keyed=True):
                for i, sample in enumerate(plain):
                    same(self, keyed["k%d" % i], sample)
            for shared in (memroom.share(plain), memroom.share(iter(plain))):
                with self.subTest(name):
                    self.assertEqual(len(shared), 20)
                    self.assertRaises(IndexError, lambda: shared[20])
                    self.assertRaises(IndexError, lambda: shared[-21])
                    self.assertRaises(IndexError, lambda: shared[3:15:4][3])
                    for at in [*range(-20, 20), numpy.int64(3)]:
                        same(self, shared[at], plain[at])
                    for ours, theirs in zip(shared[3:15:4], plain[3:15:4]):
                        same(self, ours, theirs)
                    first = shared[0][0] if type(plain[0]) in (tuple, list) else None
                    if isinstance(first, numpy.ndarray) and first.size:
                        self.assertFalse(first.flags.writeable)
                        self.assertEqual(first.ctypes.data % first.itemsize, 0)
                        sent = pickle.dumps(first)
                        self.assertLess(len(sent), first.nbytes + 1000)  # not the whole stack


def same(case, ours, theirs):
    if isinstance(theirs, numpy.ndarray):
        case.assertIsInstance(ours, numpy.ndarray)  # a large one is of a class of its own
        case.assertEqual((ours.dtype, ours.shape), (theirs.dtype, theirs.shape))
        numpy.testing.assert_array_equal(ours, theirs)
        return
    if not isinstance(ours, memroom.sharing.SharedList):  # a large one is shared itself
        case.assertIs(type(ours), type(theirs))
    if isinstance(theirs, dict):
        case.assertEqual(list(ours), list(theirs))
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(theirs, (list, tuple)):
        case.assertEqual(len(ours), len(theirs))
        for one, other in zip(ours, theirs):
            same(case, one, other)
    else:
        case.assertEqual(ours, theirs)


def outcome(way, frame):
    """What it gives, or the kind of its error."""
    try:
        return way(frame)
    except Exception as error:
        return type(error)


class Frames(unittest.TestCase):
    def setUp(self):
        try:
            import pandas
        except ImportError:
            self.skipTest("needs pandas")
        self.pandas = pandas

    def frame(self):
        pandas = self.pandas
        return pandas.DataFrame(
            {
                "i": [1, 2, 3],
                "f": [1.5, None, 2.5],
                "s": ["x", "y", "z"],
                "c": pandas.Categorical(["u", "v", "u"]),
                "t": pandas.date_range("2020", periods=3),
                "b": [True, False, True],
            },
            index=[10, 20, 30],
        )

    def test_frames_and_series(self):
        pandas, frame = self.pandas, self.frame()
        for shared in (memroom.share(frame), pickle.loads(pickle.dumps(memroom.share(frame)))):
            self.assertIsInstance(shared, pandas.DataFrame)
            pandas.testing.assert_frame_equal(shared, frame, check_dtype=False)
            self.assertEqual(shared.loc[20, "s"], "y")
            self.assertEqual(shared.iloc[-1]["i"], 3)
            self.assertEqual(shared[shared.i > 1].f.isna().sum(), 1)
            self.assertEqual(shared.groupby("c", observed=True).i.sum().to_dict(), {"u": 4, "v": 2})
            for change in (
                lambda: shared.__setitem__("new", 1),
                lambda: shared.loc.__setitem__((10, "i"), 5),
                lambda: shared.iloc.__setitem__((0, 0), 5),
                lambda: shared.pop("i"),
            ):
                with self.assertRaisesRegex(TypeError, "df.copy"):
                    change()
            changed = shared.copy()
            changed["new"] = 1
            self.assertEqual(list(memroom.share(frame["i"])), [1, 2, 3])
        column = pickle.loads(pickle.dumps(memroom.share(frame["f"])))
        pandas.testing.assert_series_equal(column, frame["f"], check_series_type=False)

    def test_every_way_to_read(self):
        """Rows and cells come by a way of their own: they must be what pandas gives."""
        pandas = self.pandas
        frame = self.frame()
        frames = [
            frame,
            frame[["i", "b"]],
            frame[["f"]],
            frame.set_index("s"),
            frame.set_index(["i", "s"]),
            frame.set_index("t"),
            frame.reset_index(drop=True),
            frame.iloc[[0, 0, 1]],  # a label twice
            frame.rename(columns={"f": "i"}),  # a column twice
            frame.iloc[:0],
            pandas.DataFrame({1: [1, 2], 0: [3.5, 4.5]}, index=[1, 0]),
        ]
        ways = {
            "row": lambda f: f.iloc[1],
            "last row": lambda f: f.iloc[-1],
            "beyond": lambda f: f.iloc[3],
            "cell": lambda f: f.iloc[1, 0],
            "last cell": lambda f: f.iloc[-1, -1],
            "cell beyond": lambda f: f.iloc[0, 9],
            "iat": lambda f: f.iat[2, 1],
            "iat of a row": lambda f: f.iat[1],
            "rows": lambda f: f.iloc[:2],
            "chosen": lambda f: f.iloc[[1, 0]],
            "number": lambda f: f.iloc[numpy.int64(1)],
            "label": lambda f: f.loc[20],
            "text": lambda f: f.loc["y"],
            "day": lambda f: f.loc["2020-01-02"],
            "one": lambda f: f.loc[1],
            "pair": lambda f: f.loc[(2, "y")],
            "truth": lambda f: f.loc[True],
            "absent": lambda f: f.loc[99],
            "label, column": lambda f: f.loc[10, "i"],
            "text, column": lambda f: f.loc["x", "c"],
            "absent column": lambda f: f.loc[10, "q"],
            "number, number": lambda f: f.loc[1, 0],
            "at": lambda f: f.at[20, "b"],
            "at of a text": lambda f: f.at["z", "f"],
            "at of two": lambda f: f.at[10, "t"],
            "column": lambda f: f["i"],
            "attribute": lambda f: f.b,
            "columns": lambda f: f[["i"]],
            "mask": lambda f: f[f.iloc[:, 0] == f.iloc[0, 0]],
            "function": lambda f: f.loc[lambda g: g.index == g.index[0]],
            "row to dict": lambda f: f.iloc[0].to_dict(),
            "rows to dicts": lambda f: f.loc[:, ~f.columns.duplicated()].to_dict("records"),
        }
        for number, plain in enumerate(frames):
            shared = memroom.share(plain)
            ordinary = pickle.loads(pickle.dumps(shared.copy()))  # with its types of columns
            self.assertIs(type(ordinary), pandas.DataFrame)
            for name, way in ways.items():
                with self.subTest(name, frame=number):
                    for _ in range(2):
                        self.equal(outcome(way, shared), outcome(way, ordinary))

    def equal(self, ours, theirs):
        self.assertIs(type(ours), type(theirs))
        if isinstance(theirs, self.pandas.DataFrame):
            self.pandas.testing.assert_frame_equal(ours, theirs)
        elif isinstance(theirs, self.pandas.Series):
            self.pandas.testing.assert_series_equal(ours, theirs)
            self.assertEqual(ours.name, theirs.name)
        else:
            self.assertEqual(repr(ours), repr(theirs))  # NaN is not equal to itself

    def test_labels_may_be_changed(self):
        frame = self.frame()
        shared = memroom.share(frame)
        self.assertEqual(shared.loc[10, "i"], 1)
        shared.index = [5, 6, 7]
        shared.columns = list("abcdef")
        shared.attrs["from"] = "here"
        self.assertEqual(shared.loc[5, "a"], 1)
        self.assertEqual(shared.at[7, "a"], 3)
        self.assertEqual(list(shared.iloc[0].index), list("abcdef"))
        self.assertEqual(shared.iloc[:1].attrs, {"from": "here"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas means to give up changes in place
            shared.drop(columns="a", inplace=True)
        self.assertRaises(KeyError, lambda: shared.loc[5, "a"])
        self.assertEqual(shared.iloc[0, 0], 1.5)
        row = shared.iloc[1].copy()
        row["b"] = 7.0
        self.assertEqual(row["b"], 7.0)
        self.assertFalse(shared.iloc[1]["b"] == 7.0)

    def test_columns_of_objects_are_said(self):
        frame = self.pandas.DataFrame({"o": [{"a": 1}, [2]]})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            shared = memroom.share(frame)
        self.assertIn("'o' holds Python objects", str(said[0].message))
        self.assertEqual(shared["o"].tolist(), [{"a": 1}, [2]])

    def test_arrow(self):
        try:
            import pyarrow
        except ImportError:
            self.skipTest("needs pyarrow")
        table = pyarrow.table(
            {
                "a": [1, None, 3],
                "s": ["x", None, "z"],
                "l": [[1], [], None],
                "d": pyarrow.array(["p", "q", "p"]).dictionary_encode(),
            }
        )
        with self.assertRaisesRegex(TypeError, r"share pyarrow.table\({"):
            memroom.share(table["a"])
        for source in (table, table.slice(1, 2), table.slice(0, 0), table.to_batches()[0]):
            for shared in (
                memroom.share(source),
                pickle.loads(pickle.dumps(memroom.share(source))),
            ):
                self.assertTrue(shared.equals(source) and shared == source)
                self.assertEqual(len(shared), source.num_rows)
                self.assertEqual(shared.to_pylist(), source.to_pylist())
                self.assertEqual(shared["a"].to_pylist(), source["a"].to_pylist())


def total(shared, out):
    try:
        out.put(sum(sample["x"] for sample in shared["rows"]) + len(shared["names"]))
    except BaseException as error:  # a child that dies silently would hang the test
        out.put(repr(error))


class Processes(unittest.TestCase):
    def test_fork_spawn_forkserver_and_queues(self):
        shared = memroom.share({"rows": [{"x": i} for i in range(30000)], "names": ["a", "b"]})
        expected = sum(range(30000)) + 2
        for method in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context(method)
            out = context.Queue()
            child = context.Process(target=total, args=(shared, out))
            child.start()
            self.assertEqual(out.get(timeout=120), expected, method)
            child.join()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.apply(sum, (memroom.share(list(range(10))),)), 45)

    def test_many_handles_of_one_block(self):
        rows = memroom.share({"rows": [{"x": i} for i in range(30000)], "names": ["a", "b"]})
        context = multiprocessing.get_context("spawn")
        out = context.Queue()
        both = {"rows": rows["rows"][:10], "names": rows["rows"]}
        child = context.Process(target=total, args=(both, out))
        child.start()
        self.assertEqual(out.get(timeout=120), 45 + 30000)
        child.join()

    def test_where_the_owner_is_gone(self):
        program = (
            "import memroom, pickle, sys; "
            "sys.stdout.write(pickle.dumps(memroom.share([1]), 0).decode('latin1'))"
        )
        text = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
        with self.assertRaisesRegex(RuntimeError, "cannot be mapped here.*memroom.share"):
            pickle.loads(text.stdout)

    def test_dev_shm_may_be_small(self):
        """In a mount namespace of its own with a /dev/shm of 1 MiB."""
        program = textwrap.dedent("""
            import memroom, os
            assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_bsize == 1 << 20
            s = memroom.share(["x" * 1000] * 64000)
            assert s[-1] == "x" * 1000 and os.listdir("/dev/shm") == []
            print("ok")
        """)
        shell = "mount -t tmpfs -o size=1m none /dev/shm && exec %s -c '%s'"
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", shell % (sys.executable, program)],
            capture_output=True,
        )
        if b"unshare" in done.stderr or b"mount" in done.stderr:
            self.skipTest("needs the right to mount: %r" % done.stderr)
        self.assertEqual(done.stdout, b"ok\n", done.stderr)


class Loader(unittest.TestCase):
    def setUp(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs torch")
        self.torch = torch

    def batches(self, samples, **options):
        torch = self.torch
        loader = torch.utils.data.DataLoader(
            samples,
            batch_size=16,
            shuffle=True,
            generator=torch.Generator().manual_seed(3),
            **options,
        )
        return list(loader)

    def test_batches_equal_those_of_the_list(self):
        torch = self.torch
        samples = [
            {"x": torch.full((3,), float(i)), "b": torch.ones(2, dtype=torch.bfloat16), "i": i}
            for i in range(50)
        ]
        expected = self.batches(samples)
        shared = memroom.share(samples)
        for options in (
            {"num_workers": 0},
            {"num_workers": 2, "multiprocessing_context": "fork"},
            {"num_workers": 2, "multiprocessing_context": "spawn"},
        ):
            for a, b in zip(expected, self.batches(shared, **options)):
                for name in a:
                    self.assertTrue(torch.equal(a[name], b[name]))

    def test_tensors_without_elements(self):
        torch = self.torch
        none = torch.zeros(0, 4, dtype=torch.float16)
        samples = [none, torch.ones(2, 3), {"boxes": none, "deep": [(none, "x")]}, torch.tensor(3)]
        for things in (
            samples,
            samples[::-1],
            [{"b": none}] * 3,
            [(none, 1), (torch.ones(1, 4), 2)],
        ):
            shared = memroom.share(things)
            for found in (list(shared), pickle.loads(pickle.dumps(shared))):
                self.same(list(found), things)

    def same(self, found, wanted):
        self.assertIs(type(found), type(wanted))
        if isinstance(wanted, self.torch.Tensor):
            self.assertEqual((found.dtype, found.shape), (wanted.dtype, wanted.shape))
            self.assertTrue(self.torch.equal(found, wanted))
        elif isinstance(wanted, dict):
            self.same(list(found.values()), list(wanted.values()))
        elif isinstance(wanted, (list, tuple)):
            self.assertEqual(len(found), len(wanted))
            for one, other in zip(found, wanted):
                self.same(one, other)
        else:
            self.assertEqual(found, wanted)

    def test_one_tensor_is_no_container(self):
        with self.assertRaisesRegex(TypeError, "leave it as it is"):
            memroom.share(self.torch.ones(3))

    def test_a_changed_tensor_stays_in_its_process(self):
        torch = self.torch
        alike = memroom.share([torch.zeros(4) for _ in range(20)])
        self.assertEqual(alike[3].untyped_storage().nbytes(), 16)  # so only that is sent on
        for shared in (memroom.share([torch.zeros(4), (torch.zeros(2), 1)]), alike):
            self.changed(shared)

    def changed(self, shared):
        shared[0].add_(1)
        child = subprocess.run(
            [sys.executable, "-c", "import pickle, sys; print(pickle.load(sys.stdin.buffer)[0])"],
            input=pickle.dumps(shared),
            stdout=subprocess.PIPE,
        )
        self.assertEqual(child.stdout.strip(), b"tensor([0., 0., 0., 0.])")

    def test_workers_copy_nothing(self):
        """Reading the whole list in a forked process copies its pages; reading ours does not."""
        samples = [{"n": i, "text": "x" * 400 + str(i)} for i in range(60000)]
        copied = growth(samples)
        self.assertLess(growth(memroom.share(samples)), copied / 3)


def growth(samples):
    """Bytes that a forked process copies of its parent's memory by reading all samples."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = anonymous()
        for sample in samples:
            sample["text"]
        os.write(write, b"%d" % (anonymous() - before))
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read) as file:
        return int(file.read())


def anonymous():
    """Memory of this process that belongs to no file, its part of what it has in common."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss_Anon"))


if __name__ == "__main__":
    unittest.main()
