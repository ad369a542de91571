"""Folders of images, and rows by their numbers, in the loops that people write."""

import io
import os
import pickle
import tracemalloc
import unittest
import warnings

import memroom
import numpy
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import torch
from PIL import Image
from test_stream_passes import Case
from torch.utils.data import DataLoader, DistributedSampler


def small(image):
    return image.resize((8, 8))


def chw(image):
    """As torchvision's ToTensor makes of an image."""
    return torch.from_numpy(numpy.asarray(image.resize((4, 4))).copy()).permute(2, 0, 1) / 255


class Images(Case):
    def setUp(self):
        super().setUp()
        self.pixels = {}
        random = numpy.random.default_rng(1)
        for n in range(30):
            name = "%s/%02d.png" % (("bee", "ant", "cat")[n % 3], n)
            pixels = random.integers(0, 256, (8 + n, 9, 3), numpy.uint8)
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            Image.fromarray(pixels).save(self.path(name))
            self.pixels[name] = pixels

    def images(self, **options):
        return memroom.Stream(self.folder, **{"batch_size": 8, **options})

    def test_every_image_comes_once_with_its_class(self):
        stream = self.images(shuffle=True)
        self.assertEqual((stream.rows, len(stream)), (30, 4))
        self.assertEqual(stream.classes, ["ant", "bee", "cat"])
        seen = {}
        for batch in stream.decode():
            for image, label, path in zip(batch["image"], batch["label"], batch["path"]):
                self.assertEqual(stream.classes[label], os.path.dirname(path))
                seen[path] = image
        self.assertEqual(sorted(seen), sorted(self.pixels))
        for path, image in seen.items():
            numpy.testing.assert_array_equal(image, self.pixels[path])

    def test_one_shape_becomes_one_array(self):
        batch = next(iter(self.images().decode(small)))
        self.assertEqual((batch["image"].shape, batch["image"].dtype), ((8, 8, 8, 3), numpy.uint8))
        loader = DataLoader(
            self.images().decode(chw).torch(x="image", y="label"), batch_size=None, num_workers=2
        )
        shapes = [(x.shape, x.dtype, y.dtype) for x, y in loader]
        self.assertEqual(shapes[0], ((8, 3, 4, 4), torch.float32, torch.int64))
        self.assertEqual([shape[0] for shape, *_ in shapes], [8, 8, 8, 6])

    def test_no_image_is_held_twice(self):
        """Each goes into the batch's array at once."""
        stream = self.images(batch_size=30).decode(lambda _: numpy.ones(1 << 20, "u1"))
        tracemalloc.start()
        try:
            self.assertEqual(next(iter(stream))["image"].shape, (30, 1 << 20))
            self.assertLess(tracemalloc.get_traced_memory()[1], 40 << 20)
        finally:
            tracemalloc.stop()

    def test_patterns_and_folders_without_classes(self):
        stream = memroom.Stream(self.path("*/*.png"))
        self.assertEqual((stream.rows, stream.classes), (30, ["ant", "bee", "cat"]))
        stream = memroom.Stream(self.path("ant"))
        self.assertEqual((stream.columns, stream.classes), (["image", "path"], []))
        os.makedirs(self.path("more/dog"))
        os.rename(self.path("bee"), self.path("more/bee"))
        with self.assertRaisesRegex(memroom.FeedError, "name the folder that holds both"):
            list(memroom.Stream([self.path("[ac]*/*.png"), self.path("more")]))

    def test_what_is_no_image_is_named(self):
        with open(self.path("bee/00.png"), "wb") as file:
            file.write(b"\x89PNG and no more")
        with self.assertRaisesRegex(memroom.FeedError, "bee/00.png"):
            list(self.images().decode())
        rows = sum(len(b["label"]) for b in self.images(skip_bad=True).decode())
        self.assertEqual(rows, 29)

    def test_a_changed_folder_is_read_as_it_is_then(self):
        stream = self.images()
        self.assertEqual(stream.rows, 30)
        os.remove(self.path("bee/00.png"))
        self.assertEqual(sum(len(b["label"]) for b in stream), 29)

    def test_images_in_columns(self):
        def encoded(n):
            out = io.BytesIO()
            Image.fromarray(numpy.full((4, 4, 3), n, numpy.uint8)).save(out, "PNG")
            return {"bytes": out.getvalue(), "path": "%d.png" % n}

        table = pyarrow.table({"image": [encoded(n) for n in range(5)], "label": [*range(5)]})
        pyarrow.parquet.write_table(table, self.path("a.parquet"))
        batch = next(iter(memroom.Stream(self.path("a.parquet")).decode()))
        self.assertEqual(batch["image.bytes"][:, 0, 0, 0].tolist(), [0, 1, 2, 3, 4])
        with self.assertRaisesRegex(ValueError, "'label' is no column of encoded images"):
            memroom.Stream(self.path("a.parquet")).decode(None, "label")


class Indexed(Case):
    def files(self):
        """The same rows in every format whose rows can be checked."""
        table = pyarrow.table({"n": numpy.arange(5000), "t": ["row %d" % n for n in range(5000)]})
        pyarrow.parquet.write_table(table, self.path("a.parquet"), row_group_size=700)
        pyarrow.feather.write_feather(table, self.path("a.arrow"), "uncompressed", chunksize=900)
        frame = table.to_pandas()
        frame.to_csv(self.path("a.csv"), index=False)
        frame.to_json(self.path("a.jsonl"), orient="records", lines=True)
        return [self.path("a." + kind) for kind in ("parquet", "arrow", "csv", "jsonl")]

    def test_rows_by_number(self):
        for path in self.files():
            rows = memroom.Stream(path).indexed()
            self.assertEqual(len(rows), 5000)
            self.assertEqual(rows[4711], {"n": 4711, "t": "row 4711"})
            self.assertEqual(rows[-1]["n"], 4999)
            self.assertEqual(rows[10:14]["t"].tolist(), ["row %d" % n for n in range(10, 14)])
            self.assertEqual(rows[[4999, 0, 0, 77]]["n"].tolist(), [4999, 0, 0, 77])
            self.assertEqual(rows[[]]["n"].tolist(), [])
            odd = numpy.arange(5000) % 2 == 1
            self.assertEqual(rows[odd]["n"].tolist(), [*range(1, 5000, 2)])
            for wrong in (5000, [True], ["a"], [1.0], [[1]]):
                with self.assertRaisesRegex(IndexError, "5000 rows"):
                    rows[wrong]
            self.assertEqual(rows[1]["n"], 1)
            self.assertEqual(pickle.loads(pickle.dumps(rows))[3]["n"], 3)

    def test_torch_shuffles_and_shares_out(self):
        rows = self.stream(1000).indexed()
        for workers in (0, 2):
            loader = DataLoader(rows, batch_size=32, shuffle=True, num_workers=workers)
            batches = [b["data"] for b in loader]
            self.assertEqual(torch.cat(batches).sort().values.tolist(), [*range(1000)])
            self.assertNotEqual(batches[0].tolist(), [*range(32)])
        parts = [DistributedSampler(rows, 2, rank, shuffle=False) for rank in range(2)]
        loaders = [DataLoader(rows, batch_size=50, sampler=part) for part in parts]
        seen = [b["data"] for loader in loaders for b in loader]
        self.assertEqual(torch.cat(seen).sort().values.tolist(), [*range(1000)])

    def test_parts_and_changes(self):
        whole = self.stream(3000)
        first, second = (part.indexed() for part in whole.split(0.9, 0.1))
        self.assertEqual(len(first) + len(second), 3000)
        both = [*first[:]["data"], *second[:]["data"]]
        self.assertEqual(sorted(both), [*range(3000)])
        self.assertEqual(second[7]["data"], second[:]["data"][7])
        double = whole.map(lambda batch: {"twice": 2 * batch["data"]}).indexed()
        self.assertEqual(double[21], {"twice": 42})
        with self.assertRaisesRegex(ValueError, "filter what indexed"):
            whole.filter(lambda batch: batch["data"] > 3).indexed()

    def test_a_stream_itself_says_what_to_write(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for workers in (0, 2):
                with self.assertRaisesRegex(TypeError, "stream.torch.*stream.indexed"):
                    list(DataLoader(self.stream(), num_workers=workers))

    def test_shuffle_is_a_method_too(self):
        plain, mixed = self.stream(1000), self.stream(1000).shuffle(seed=3)
        reference = self.stream(1000, shuffle=True, seed=3)
        self.assertEqual(
            [b["data"].tolist() for b in mixed], [b["data"].tolist() for b in reference]
        )
        self.assertEqual(next(iter(plain))["data"].tolist(), [*range(10)])


if __name__ == "__main__":
    unittest.main()
