"""memroom.Stream beside its peers: one shuffled epoch of the same rows, batches of 1,024.

Every reader runs in a process of its own, after its imports and, for us, after the index was made.
Printed: rows and bytes of the file a second, rows a second of processor time (of all processes),
which says more on a busy machine, and the memory that reading added: anonymous and shared memory of
all its processes, our server's whole memory included. "in all" is the same with what the reader's
process had before: Python and the libraries that it imports. A reader that is not through after
--seconds is stopped, and the rows until then count.

The first column is one of ten classes, by which the rows are sorted: "mixed" is how many classes a
batch holds on average, in hundredths of a perfect shuffle's.

Ours runs with several budgets, and below each table every peer that shuffles is set beside the
fastest of ours that adds no more memory than it does. A budget of 64 MiB holds the same window, so
the order is the same as with 128 MiB; the smaller ones have smaller windows, down to 10,240 rows,
which is what the peers' buffers of 10,000 rows mix.

Peers shuffle as far as they can. pyarrow has no shuffle: it reads in order, which is less work, or
16 MiB at a time whose rows are mixed with NumPy, which is what a careful user writes. With
--step every batch is followed by so many milliseconds of work on one core, and two shares of the
time are printed, the first batch included: blocked, while no batch was ready (ours only), and all
that was not work, which the cost of the calls themselves adds to.
Tar files hold 100,000 rows, as WebDataset writes them; Mosaic's streaming reads as many, converted
for it. Images are 4,000 JPEG files in ten folders, batches of 64, decoded in two workers.

    MEMROOM_BINARY=bin/memroom $(bench/feed/peers) bench/feed/stream.py [--rows N] [--formats csv]
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import tree

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path.insert(0, os.path.join(ROOT, "python"))
COLUMNS = 16
BATCH = 1024
BLOCKED = [0.0]
SERVER_LEAVES = 3.0  # seconds
CONVERTED = 100_000  # rows at most, for readers with files of their own
CLASSES = 10
IMAGES = 4_000


def make(folder, rows, formats, only):
    import numpy
    import pyarrow
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    data = numpy.random.default_rng(1).normal(size=(rows, COLUMNS)).astype("f4")
    data[:, 0] = numpy.arange(rows) * CLASSES // rows
    table = pyarrow.table({"x%d" % i: data[:, i] for i in range(COLUMNS)})
    if "npy" in formats:
        numpy.save(os.path.join(folder, "a.npy"), data)
        if not only:
            convert(folder, data[:: max(1, rows // CONVERTED)])
    if "parquet" in formats:
        path = os.path.join(folder, "a.parquet")
        pyarrow.parquet.write_table(table, path, row_group_size=131072)
    if "arrow" in formats:
        pyarrow.feather.write_feather(
            table, os.path.join(folder, "a.arrow"), compression="uncompressed"
        )
    if "tar" in formats:
        import webdataset

        with webdataset.TarWriter(os.path.join(folder, "a.tar")) as out:
            for i, row in enumerate(data[:: max(1, rows // CONVERTED)]):
                out.write({"__key__": "%08d" % i, "npy": row, "cls": int(row[0])})
    if "images" in formats:
        pictures(os.path.join(folder, "a.images"))
    if "csv" in formats:
        pyarrow.csv.write_csv(table, os.path.join(folder, "a.csv"))
    if "jsonl" in formats:
        frame = table.to_pandas()
        frame.to_json(os.path.join(folder, "a.jsonl"), orient="records", lines=True)


def convert(folder, data):
    try:
        import streaming
    except ImportError:
        return
    columns = {"x": "ndarray:float32:%d" % COLUMNS}
    with streaming.MDSWriter(out=os.path.join(folder, "mds"), columns=columns) as out:
        for row in data:
            out.write({"x": row})


def pictures(folder):
    import numpy
    from PIL import Image

    coarse = numpy.random.default_rng(1).integers(0, 256, (IMAGES, 12, 12, 3), dtype="u1")
    for i, pixels in enumerate(coarse):
        place = os.path.join(folder, "class%d" % (i * CLASSES // IMAGES))
        os.makedirs(place, exist_ok=True)
        image = Image.fromarray(pixels).resize((160, 160), Image.Resampling.BICUBIC)
        image.save(os.path.join(place, "%05d.jpg" % i))


def memroom_stream(path, budget="128MiB", window="16MiB"):
    import memroom
    import numpy  # noqa: F401  imported by the stream at its first batch

    stream = memroom.Stream(
        path, batch_size=BATCH, budget=budget, window=window, shuffle=True, copy=False
    )
    yield stream.schema  # the index is made before the epoch, as it is made once
    for batch in stream:
        BLOCKED[0] = stream._passed[2]  # seconds in which no batch was ready
        first = next(iter(batch.values()))
        yield first[:, 0] if first.ndim > 1 else first


def memroom_torch(path):
    import memroom
    import torch

    stream = memroom.Stream(path, batch_size=BATCH, budget="128MiB", window="16MiB", shuffle=True)
    batches = iter(torch.utils.data.DataLoader(stream.torch(), batch_size=None, num_workers=2))
    batch = next(batches)  # the workers run: starting them is no reading
    yield stream.schema
    while batch is not None:
        first = next(iter(batch.values()))
        yield first[:, 0] if first.ndim > 1 else first
        batch = next(batches, None)


def arrays(batch):
    """Rows of a tar file as numbers, as the peer decodes them."""
    import numpy

    return {
        "cls": batch["cls"].astype(int),
        "x": numpy.stack([numpy.load(io.BytesIO(one)) for one in batch["npy"]]),
    }


def memroom_tar(path):
    import memroom
    import numpy  # noqa: F401

    stream = memroom.Stream(path, batch_size=BATCH, budget="128MiB", shuffle=True).map(arrays)
    yield stream.schema
    for batch in stream:
        yield batch["cls"]


def memroom_images(path):
    import memroom
    import torch

    stream = memroom.Stream(path, batch_size=64, budget="128MiB", shuffle=True).decode()
    loader = torch.utils.data.DataLoader(
        stream.torch(x="image", y="label"), batch_size=None, num_workers=2
    )
    yield stream.schema
    for _, labels in loader:
        yield labels


def image_folder(path):
    import torch
    import torchvision

    data = torchvision.datasets.ImageFolder(path, torchvision.transforms.PILToTensor())
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, num_workers=2)
    yield None
    for _, labels in loader:
        yield labels


def memroom_with(budget, window):
    return lambda path: memroom_stream(path, budget, window)


def parts_of(path, rng):
    """What pyarrow reads one after another: where it can be chosen, in random order."""
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    if path.endswith(".parquet"):
        file = pyarrow.parquet.ParquetFile(path)
        for group in rng.permutation(file.num_row_groups):
            yield file.read_row_group(group)
    elif path.endswith(".arrow"):
        file = pyarrow.ipc.open_file(pyarrow.memory_map(path))
        for number in rng.permutation(file.num_record_batches):
            yield file.get_batch(number)
    else:
        yield from (pyarrow.csv.open_csv if path.endswith(".csv") else pyarrow.json.open_json)(path)


def pyarrow_in_order(path):
    import pyarrow.dataset

    yield None
    for batch in pyarrow.dataset.dataset(path, format=kind(path)).to_batches():
        for start in range(0, batch.num_rows, BATCH):
            part = batch.slice(start, BATCH)
            yield [column.to_numpy(zero_copy_only=False) for column in part.columns][0]


def pyarrow_mixed(path):
    """Windows of 16 MiB, mixed with NumPy."""
    import numpy

    yield None
    rng = numpy.random.default_rng(1)
    held, size = [], 0

    def mixed():
        columns = [
            numpy.concatenate([numpy.asarray(b.column(i)) for b in held])
            for i in range(held[0].num_columns)
        ]
        order = rng.permutation(len(columns[0]))
        for at in range(0, len(order), BATCH):
            yield [column[order[at : at + BATCH]] for column in columns][0]

    for part in parts_of(path, rng):
        held.append(part)
        size += part.nbytes
        if size >= 16 << 20:
            yield from mixed()
            held, size = [], 0
    if held:
        yield from mixed()


def kind(path):
    return {"jsonl": "json"}.get(path.rsplit(".", 1)[1], path.rsplit(".", 1)[1])


def hf_streaming(path):
    import datasets

    data = datasets.load_dataset(kind(path), data_files=path, streaming=True, split="train")
    data = data.shuffle(seed=1, buffer_size=10_000).with_format("numpy")
    yield None
    for batch in data.iter(BATCH):
        yield next(iter(batch.values()))


def hf_mapped(path):
    import datasets

    cache = os.environ["XDG_CACHE_HOME"]
    data = datasets.load_dataset(kind(path), data_files=path, split="train", cache_dir=cache)
    data = data.with_format("numpy")
    yield None  # its copy as Arrow is made before
    for batch in data.shuffle(seed=1).iter(BATCH):
        yield next(iter(batch.values()))


def tf_rows(path):
    import tensorflow

    data = tensorflow.data.experimental.CsvDataset(path, [0.0] * COLUMNS, header=True)
    data = data.shuffle(10_000, seed=1).batch(BATCH).prefetch(tensorflow.data.AUTOTUNE)
    yield None
    for batch in data:
        yield batch[0].numpy()


def tf_lines(path):
    """Tuned: lines are mixed and batched as texts, and decoded a batch at a time on both cores."""
    import tensorflow

    data = tensorflow.data.TextLineDataset(path).skip(1).shuffle(100_000, seed=1).batch(BATCH)
    data = data.map(
        lambda lines: tensorflow.io.decode_csv(lines, [0.0] * COLUMNS),
        num_parallel_calls=tensorflow.data.AUTOTUNE,
    ).prefetch(tensorflow.data.AUTOTUNE)
    yield None
    for batch in data:
        yield batch[0].numpy()


def torch_memmap(path):
    import numpy
    import torch

    data = numpy.load(path, mmap_mode="r+")
    rows = torch.utils.data.TensorDataset(torch.from_numpy(data))
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)
    yield None
    for (batch,) in loader:
        yield batch[:, 0]


def torch_memmap_tuned(path):
    """A batch is one indexing of the map, not 1,024."""
    import numpy
    import torch

    data = torch.from_numpy(numpy.load(path, mmap_mode="r+"))
    chosen = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), BATCH, False)
    loader = torch.utils.data.DataLoader(data, sampler=chosen, batch_size=None)
    yield None
    for batch in loader:
        yield batch[:, 0]


def torch_iterable(path):
    import torch

    class Lines(torch.utils.data.IterableDataset):
        def __iter__(self):
            with open(path) as file:
                if path.endswith(".csv"):
                    next(file)
                    for line in file:
                        yield torch.tensor(list(map(float, line.split(","))))
                for line in file:
                    yield torch.tensor(list(json.loads(line).values()))

    yield None
    for batch in torch.utils.data.DataLoader(Lines(), batch_size=BATCH, num_workers=2):
        yield batch[:, 0]


def web_dataset(path):
    import numpy
    import torch
    import webdataset

    data = webdataset.WebDataset(path, shardshuffle=False).shuffle(10_000).decode()
    data = data.to_tuple("npy", "cls").batched(BATCH)
    yield None
    for rows, classes in torch.utils.data.DataLoader(data, batch_size=None):
        numpy.asarray(rows)
        yield classes


def mosaic(path):
    import streaming
    import torch

    folder = os.path.join(os.path.dirname(path), "mds")
    data = streaming.StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)
    yield None
    for batch in torch.utils.data.DataLoader(data, batch_size=BATCH):
        yield batch["x"][:, 0]


def pandas_in_memory(path):
    import pandas

    yield None
    frame = pandas.read_csv(path) if path.endswith(".csv") else pandas.read_json(path, lines=True)
    frame = frame.sample(frac=1, random_state=1)
    for start in range(0, len(frame), BATCH):
        yield frame.iloc[start : start + BATCH].to_numpy(dtype="f4")[:, 0]


FORMATS = ("parquet", "csv", "jsonl", "npy", "arrow", "tar", "images")
ALL = ("npy", "parquet", "csv", "jsonl", "arrow")
TEXT = ("npy", "csv", "jsonl", "arrow")  # a block of the Parquet file takes 8 MiB
READERS = {
    "memroom": (memroom_stream, ALL),
    "memroom, 256 MiB": (memroom_with("256MiB", None), ALL),
    "memroom, 64 MiB": (memroom_with("64MiB", "16MiB"), ALL),
    "memroom, 48 MiB, window 8": (memroom_with("48MiB", "8MiB"), ALL),
    "memroom, 42 MiB, window 8": (memroom_with("42MiB", "8MiB"), ("parquet",)),
    "memroom, 36 MiB, window 4": (memroom_with("36MiB", "4MiB"), TEXT),
    "memroom, 32 MiB, 10k rows": (memroom_with("32MiB", "640KiB"), TEXT),
    "memroom, DataLoader, 2 workers": (memroom_torch, ALL),
    "memroom, decoded": (memroom_tar, ("tar",)),
    "memroom, DataLoader, decoded": (memroom_images, ("images",)),
    "pyarrow, 16 MiB mixed": (pyarrow_mixed, ("parquet", "csv", "jsonl", "arrow")),
    "pyarrow, in order": (pyarrow_in_order, ("parquet", "csv", "jsonl", "arrow")),
    "datasets, streaming, buffer 10k": (hf_streaming, ("parquet", "csv", "jsonl", "arrow")),
    "datasets, mapped, shuffled": (hf_mapped, ("parquet", "arrow")),
    "tf.data, rows, buffer 10k": (tf_rows, ("csv",)),
    "tf.data, lines, buffer 100k": (tf_lines, ("csv",)),
    "torch DataLoader, memmap": (torch_memmap, ("npy",)),
    "torch DataLoader, memmap, tuned": (torch_memmap_tuned, ("npy",)),
    "torch DataLoader, iterable": (torch_iterable, ("csv", "jsonl")),
    "WebDataset": (web_dataset, ("tar",)),
    "Mosaic streaming, own MDS": (mosaic, ("npy",)),
    "pandas, all in memory": (pandas_in_memory, ("csv", "jsonl")),
    "torchvision ImageFolder": (image_folder, ("images",)),
}


NOT_SHUFFLED = ("pyarrow, in order", "torch DataLoader, iterable")


def read(reader, path, most, step):
    """In the reader's process: says when it begins and ends, and waits to be measured."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    batches = READERS[reader][0](path)
    next(batches)
    print("ready", file=out, flush=True)
    sys.stdin.readline()
    start, rows, whole, worked = time.perf_counter(), 0, True, 0.0
    held = []
    for classes in batches:
        rows += len(classes)
        seen = time.perf_counter()
        held.append(len(set(classes.tolist() if hasattr(classes, "tolist") else classes)))
        begun = time.perf_counter()
        start += begun - seen  # looking at the classes is no reading
        if step:
            while time.perf_counter() - begun < step / 1e3:
                pass
            worked += time.perf_counter() - begun
        if begun - start > most:
            whole = False
            break
    spent = time.perf_counter() - start
    waited = (spent - worked) / spent
    perfect = CLASSES * (1 - (1 - 1 / CLASSES) ** (rows / len(held)))
    mixed = sum(held) / len(held) / perfect
    found = {"rows": rows, "s": spent, "whole_epoch": whole, "waited": waited, "mixed": mixed}
    found["blocked"] = BLOCKED[0] / spent
    print(json.dumps(found), file=out, flush=True)
    sys.stdin.readline()
    os._exit(0)


def measure(reader, path, most, step, again):
    ours = reader.startswith("memroom")
    if ours and again:
        # A server stays two seconds after its last consumer. The one of the run before would not
        # be a child of this reader, so its work and memory would not be counted, and it may hold
        # rows that are decoded already.
        time.sleep(SERVER_LEAVES)
    command = [sys.executable, "-W", "ignore", os.path.abspath(__file__)]
    process = subprocess.Popen(
        command + ["--reader", reader, "--path", path, "--seconds", str(most), "--step", str(step)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("VERBOSE") else subprocess.DEVNULL,
        text=True,
    )
    try:
        if process.stdout.readline() != "ready\n":
            return None
        if ours and len(tree.tree(process.pid)) < 2:
            raise SystemExit("stream.py: the server is not a child of its reader: nothing counts")
        server = sum(tree.memory(pid) for pid in tree.tree(process.pid)[1:])
        base, work = tree.memory(process.pid) - server, tree.seconds(process.pid)
        peak, end = [0], threading.Event()

        def watch():
            while not end.wait(0.02):
                peak[0] = max(peak[0], tree.memory(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()
        end.set()
        watcher.join()
        if not line:
            return None
        work = tree.seconds(process.pid) - work
        added = {"added": max(peak[0] - base, 0), "whole": peak[0]}
        return {**json.loads(line), "cpu": work, **added}
    finally:
        process.kill()
        process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--seconds", type=float, default=8, help="most for one reader")
    parser.add_argument("--step", type=float, default=0, help="milliseconds of work a batch")
    parser.add_argument("--only", nargs="+", help="these readers, such as memroom")
    parser.add_argument("--repeat", type=int, default=3, help="runs of ours; the median is printed")
    parser.add_argument("--reader")
    parser.add_argument("--path")
    arguments = parser.parse_args()
    if arguments.reader:
        return read(arguments.reader, arguments.path, arguments.seconds, arguments.step)
    formats = arguments.formats.split(",")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
        make(folder, arguments.rows, formats, arguments.only)
        head = ("format", "reader", "rows/s", "MB/s", "rows/cpu-s", "added MiB", "in all", "mixed")
        print("%-8s %-32s %10s %7s %11s %10s %7s %6s" % head)
        for form in formats:
            path = os.path.join(folder, "a." + form)
            found = {}
            for reader, (_, known) in READERS.items():
                if form in known and reader in (arguments.only or READERS):
                    found[reader] = several(arguments, form, reader, path)
            if not arguments.only:
                verdicts(form, {name: got for name, got in found.items() if got})


def size_of(path):
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(at, n)) for at, _, names in os.walk(path) for n in names
    )


def several(arguments, form, reader, path):
    """Prints the median run of a reader, and gives its rate and memory."""
    runs = [
        measure(reader, path, arguments.seconds, arguments.step, again)
        for again in range(arguments.repeat if reader == "memroom" else 1)
    ]
    if None in runs:
        print("%-8s %-32s failed" % (form, reader), flush=True)
        return None
    got = sorted(runs, key=lambda run: run["s"])[len(runs) // 2]
    rate = got["rows"] / got["s"]
    rows = {"tar": CONVERTED, "images": IMAGES}.get(form, arguments.rows)
    speed = size_of(path) / rows * rate / 1e6
    work = got["rows"] / max(got["cpu"], 0.01)
    note = "" if got["whole_epoch"] else "  (%d rows until stopped)" % got["rows"]
    if arguments.step:
        note += "  blocked %.2f %%, in all %.2f %%" % (100 * got["blocked"], 100 * got["waited"])
    mib = (got["added"] / (1 << 20), got["whole"] / (1 << 20))
    values = (form, reader, rate, speed, work, *mib, 100 * got["mixed"], note)
    print("%-8s %-32s %10.0f %7.0f %11.0f %10.0f %7.0f %6.0f%s" % values, flush=True)
    return rate, *mib


def verdicts(form, found):
    """Every peer beside the fastest of ours that adds no more memory."""
    ours = {name: got for name, got in found.items() if name.startswith("memroom")}
    for peer, (rate, added, whole) in found.items():
        if peer in ours:
            continue
        able = [(got, name) for name, got in ours.items() if got[1] <= added]
        if not able:
            least = min(got[1] for got in ours.values())
            what = "adds %.0f MiB, ours at least %.0f (in all %.0f, ours %.0f): MORE MEMORY" % (
                *(added, least, whole, min(got[2] for got in ours.values())),
            )
            quickest = max(got[0] for got in ours.values() if got[1] == least)
            what += ", %.1f x as fast" % (quickest / rate)
        else:
            (best, mib, _), name = max(able)
            what = "%.1f x as fast with %.0f of its %.0f MiB (%s): %s" % (
                *(best / rate, mib, added, name),
                "met" if best > rate else "SLOWER",
            )
        if peer in NOT_SHUFFLED:
            what += " (the peer does not shuffle)"
        print("beside %-8s %-32s %s" % (form, peer, what), flush=True)


if __name__ == "__main__":
    main()
