"""Made-up data in the shapes that the zoo's scripts read. Each maker takes the path it fills."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path
from typing import Callable

import numpy as np

RANDOM = np.random.default_rng(1)
WORDS = 10000


def text(path: Path) -> None:
    """A file of letters, about one megabyte."""
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyzOG      ,.!\n"
    path.write_text("".join(draw.choice(letters) for _ in range(1_000_000)))


def words(path: Path) -> None:
    """Train, valid and test texts, under the names of Penn Treebank's copies."""
    path.mkdir(parents=True, exist_ok=True)
    sizes = (("train.txt", 2_600_000), ("valid.txt", 60_000), ("test.txt", 60_000))
    for name, count in sizes:
        drawn = RANDOM.zipf(1.3, count) % WORDS
        drawn[:WORDS] = np.arange(min(WORDS, count))
        lines = [" ".join("w%d" % w for w in drawn[i : i + 20]) for i in range(0, count, 20)]
        (path / name).write_text("\n".join(lines) + "\n")


def tokens(path: Path) -> None:
    """Train and val files of 16-bit tokens."""
    path.mkdir(parents=True, exist_ok=True)
    for name, count in (("train.bin", 2_000_000), ("val.bin", 200_000)):
        RANDOM.integers(0, 50257, count, dtype=np.uint16).tofile(path / name)


def llmc(path: Path) -> None:
    """Tokens behind a header of 256 numbers: magic, version, count."""
    count = 2_000_000
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, count
    path.write_bytes(header.tobytes() + RANDOM.integers(0, 50257, count, dtype=np.uint16).tobytes())


def idx(path: Path, name: str, train: int = 60_000, test: int = 10_000) -> None:
    raw = path / name / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        images = RANDOM.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        labels = RANDOM.integers(0, 10, count, dtype=np.uint8)
        shape = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / (part + "-images-idx3-ubyte")).write_bytes(shape + images.tobytes())
        shape = struct.pack(">II", 2049, count)
        (raw / (part + "-labels-idx1-ubyte")).write_bytes(shape + labels.tobytes())


def mnist(path: Path) -> None:
    idx(path, "MNIST")


def fashion(path: Path) -> None:
    idx(path, "FashionMNIST")


def batches(path: Path, folder: str, names: dict[str, int], keys: list[str]) -> None:
    root = path / folder
    root.mkdir(parents=True, exist_ok=True)
    for name, count in names.items():
        entry: dict[str, object] = {
            "data": RANDOM.integers(0, 255, (count, 3072), dtype=np.uint8),
            "filenames": ["%d.png" % i for i in range(count)],
        }
        for key in keys:
            entry[key] = [int(x) for x in RANDOM.integers(0, 10, count)]
        with (root / name).open("wb") as out:
            pickle.dump(entry, out)
    meta = {
        "label_names": [str(i) for i in range(10)],
        "fine_label_names": [str(i) for i in range(100)],
    }
    for name in ("batches.meta", "meta"):
        with (root / name).open("wb") as out:
            pickle.dump(meta, out)


def cifar10(path: Path) -> None:
    names = dict.fromkeys(["data_batch_%d" % i for i in range(1, 6)] + ["test_batch"], 10_000)
    batches(path, "cifar-10-batches-py", names, ["labels"])


def cifar100(path: Path) -> None:
    names = {"train": 50_000, "test": 10_000}
    batches(path, "cifar-100-python", names, ["fine_labels", "coarse_labels"])


def images(
    path: Path, count: int, size: tuple[int, int], suffix: str = ".jpg", pattern: str = "%d"
) -> None:
    from PIL import Image

    path.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        small = RANDOM.integers(0, 255, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
        Image.fromarray(small).resize(size).save(path / (pattern % i + suffix))


def folder(path: Path) -> None:
    for part, count in (("train", 700), ("val", 20)):
        for label in range(10):
            images(path / part / str(label), count, (256, 256))


def pets(path: Path) -> None:
    for label in range(10):
        images(path, 150, (256, 256), pattern="kind%d_%%d" % label)


def bsds(path: Path) -> None:
    images(path / "BSDS300/images/train", 200, (481, 321))
    images(path / "BSDS300/images/test", 20, (481, 321))


def carvana(path: Path) -> None:
    from PIL import Image

    images(path / "imgs", 160, (960, 640))
    masks = path / "masks"
    masks.mkdir(parents=True, exist_ok=True)
    for i in range(160):
        drawn = RANDOM.integers(0, 2, (80, 120), dtype=np.uint8)
        drawn[0, :2] = 0, 1
        Image.fromarray(drawn).resize((960, 640), 0).save(masks / ("%d_mask.gif" % i))


def unpaired(path: Path) -> None:
    for part, count in (("train", 300), ("test", 10)):
        for side in "AB":
            images(path / part / side, count, (256, 256))


def paired(path: Path) -> None:
    for part, count in (("train", 600), ("test", 10), ("val", 10)):
        images(path / part, count, (512, 256))


def flat(path: Path) -> None:
    images(path, 6000, (128, 128))


def cora(path: Path) -> None:
    """Papers with 1,433 words each, and who cites whom, in the format of the Cora set."""
    path.mkdir(parents=True, exist_ok=True)
    papers = 2708
    with (path / "cora.content").open("w") as out:
        for i in range(papers):
            bits = RANDOM.integers(0, 2, 1433)
            out.write("%d\t%s\tkind%d\n" % (i, "\t".join(map(str, bits)), i % 7))
    with (path / "cora.cites").open("w") as out:
        for a, b in RANDOM.integers(0, papers, (5429, 2)):
            out.write("%d\t%d\n" % (a, b))


MAKERS: dict[str, Callable[[Path], None]] = {
    make.__name__: make
    for make in (
        text,
        words,
        tokens,
        llmc,
        mnist,
        fashion,
        cifar10,
        cifar100,
        folder,
        pets,
        bsds,
        carvana,
        unpaired,
        paired,
        flat,
        cora,
    )
}
