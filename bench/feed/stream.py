"""memroom.Stream beside its peers: one shuffled epoch of the same rows, batches of 1,024.

Every reader runs in a process of its own. Printed: rows and bytes of the file a second, rows a
second of processor time (the server's included), which says more on a busy machine, and the peak
of anonymous and shared memory. Peers shuffle as far as they can: pyarrow has no shuffle of a
file, so it reads in order, which is less work than ours, or row groups in another order with
their rows mixed. WebDataset and Mosaic's streaming are not here.

    MEMROOM_BINARY=bin/memroom PYTHON bench/feed/stream.py [--rows N] [--formats npy,csv]

PYTHON is what `testenv/ensure feed` prints.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path.insert(0, os.path.join(ROOT, "probe", "pip"))
COLUMNS = 16
BATCH = 1024


def make(folder, rows, formats):
    import numpy
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    data = numpy.random.default_rng(1).normal(size=(rows, COLUMNS)).astype("f4")
    table = pyarrow.table({"x%d" % i: data[:, i] for i in range(COLUMNS)})
    if "npy" in formats:
        numpy.save(os.path.join(folder, "a.npy"), data)
    if "parquet" in formats:
        path = os.path.join(folder, "a.parquet")
        pyarrow.parquet.write_table(table, path, row_group_size=131072)
    if "csv" in formats:
        pyarrow.csv.write_csv(table, os.path.join(folder, "a.csv"))
    if "jsonl" in formats:
        frame = table.to_pandas()
        frame.to_json(os.path.join(folder, "a.jsonl"), orient="records", lines=True)


def memroom_stream(path):
    import memroom

    stream = memroom.Stream(path, batch_size=BATCH, budget="128MiB", shuffle=True, copy=False)
    yield stream.schema  # the index is made before the epoch, as it is made once
    for batch in stream:
        yield len(next(iter(batch.values())))
    print(json.dumps({"server": stream.stats["server"], "waited": stream.stats["waited_share"]}))
    from memroom import wire

    with open("/proc/%d/stat" % wire._started[-1].pid) as file:
        ticks = file.read().rsplit(")", 1)[1].split()[11:13]
    print(json.dumps({"server_cpu": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")}))


def pyarrow_in_order(path):
    import pyarrow.csv
    import pyarrow.dataset
    import pyarrow.json

    yield None
    if path.endswith(".csv"):
        batches = pyarrow.csv.open_csv(path)
    elif path.endswith(".jsonl"):
        batches = pyarrow.json.open_json(path)
    else:
        batches = pyarrow.dataset.dataset(path).to_batches(batch_size=BATCH)
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH):
            part = batch.slice(start, BATCH)
            for column in part.columns:
                column.to_numpy(zero_copy_only=False)
            yield part.num_rows


def pyarrow_shuffled(path):
    import numpy
    import pyarrow.parquet

    yield None
    file = pyarrow.parquet.ParquetFile(path)
    rng = numpy.random.default_rng(1)
    for group in rng.permutation(file.num_row_groups):
        table = file.read_row_group(group)
        table = table.take(rng.permutation(table.num_rows))
        for batch in table.combine_chunks().to_batches(BATCH):
            for column in batch.columns:
                column.to_numpy(zero_copy_only=False)
            yield batch.num_rows


def hf_streaming(path):
    import datasets

    kind = {"jsonl": "json"}.get(path.rsplit(".", 1)[1], path.rsplit(".", 1)[1])
    data = datasets.load_dataset(kind, data_files=path, streaming=True, split="train")
    data = data.shuffle(seed=1, buffer_size=10_000).with_format("numpy")
    yield None
    for batch in data.iter(BATCH):
        yield len(next(iter(batch.values())))


def tf_data(path):
    import tensorflow

    data = tensorflow.data.experimental.CsvDataset(path, [0.0] * COLUMNS, header=True)
    data = data.shuffle(10_000, seed=1).batch(BATCH).prefetch(tensorflow.data.AUTOTUNE)
    yield None
    for batch in data:
        yield len(batch[0].numpy())


def torch_memmap(path):
    import numpy
    import torch

    data = numpy.load(path, mmap_mode="r+")
    rows = torch.utils.data.TensorDataset(torch.from_numpy(data))
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)
    yield None
    for (batch,) in loader:
        yield len(batch)


def pandas_in_memory(path):
    import pandas

    yield None
    frame = pandas.read_csv(path) if path.endswith(".csv") else pandas.read_json(path, lines=True)
    frame = frame.sample(frac=1, random_state=1)
    for start in range(0, len(frame), BATCH):
        yield len(frame.iloc[start : start + BATCH].to_numpy(dtype="f4"))


READERS = {
    "memroom": (memroom_stream, ("npy", "parquet", "csv", "jsonl")),
    "pyarrow, in order": (pyarrow_in_order, ("parquet", "csv", "jsonl")),
    "pyarrow, row groups shuffled": (pyarrow_shuffled, ("parquet",)),
    "datasets, streaming, buffer 10k": (hf_streaming, ("parquet", "csv", "jsonl")),
    "tf.data, buffer 10k": (tf_data, ("csv",)),
    "torch DataLoader over memmap": (torch_memmap, ("npy",)),
    "pandas, all in memory": (pandas_in_memory, ("csv", "jsonl")),
}


def used(pid):
    with open("/proc/%d/status" % pid) as file:
        fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields.get(n, "0 kB").split()[0]) << 10 for n in ("RssAnon", "RssShmem"))


def measure(reader, path):
    peak, end = [0], threading.Event()

    def watch():
        while not end.wait(0.02):
            peak[0] = max(peak[0], used(os.getpid()))

    threading.Thread(target=watch, daemon=True).start()
    batches = READERS[reader][0](path)
    next(batches)
    base = used(os.getpid())
    start, cpu, rows = time.perf_counter(), time.process_time(), 0
    for count in batches:
        rows += count
    seconds, work = time.perf_counter() - start, time.process_time() - cpu
    end.set()
    print(json.dumps({"rows": rows, "s": seconds, "cpu": work, "peak": peak[0], "base": base}))


def run(reader, path):
    out = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--reader", reader, "--path", path],
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.splitlines()
    result = {}
    for line in out:
        result.update(json.loads(line))
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--formats", default="npy,parquet,csv,jsonl")
    parser.add_argument("--reader")
    parser.add_argument("--path")
    arguments = parser.parse_args()
    if arguments.reader:
        return measure(arguments.reader, arguments.path)
    formats = arguments.formats.split(",")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
        make(folder, arguments.rows, formats)
        head = ("format", "reader", "rows/s", "MB/s", "rows/cpu-s", "peak MiB")
        print("%-8s %-32s %10s %8s %11s  %s" % head)
        for form in formats:
            path = os.path.join(folder, "a." + form)
            size = os.path.getsize(path)
            for reader, (_, known) in READERS.items():
                if form not in known:
                    continue
                got = run(reader, path)
                if "rows" not in got:
                    print("%-8s %-30s failed" % (form, reader))
                    continue
                memory = "%d in the process" % (got["peak"] >> 20)
                if "server" in got:
                    memory += ", server %d of %d" % (
                        got["server"]["peak"] >> 20,
                        got["server"]["budget"] >> 20,
                    )
                rate = got["rows"] / got["s"]
                speed = size / got["s"] / 1e6
                work = got["rows"] / (got["cpu"] + got.get("server_cpu", 0))
                values = (form, reader, rate, speed, work, memory)
                print("%-8s %-32s %10.0f %8.0f %11.0f  %s" % values, flush=True)


if __name__ == "__main__":
    main()
