"""What bench/feed/cap runs: see there."""

import json
import os
import random
import subprocess
import sys
import time

import numpy
from train import Group

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path.insert(0, os.path.join(ROOT, "python"))
MIB, COLUMNS, BATCH = 1 << 20, 16, 1024
LIMIT = 128 * MIB


def make(path, size):
    """A file of at least size bytes, in pieces that differ only by place."""
    rng = numpy.random.default_rng(0)
    part = rng.normal(size=(500_000, COLUMNS)).astype("f4")
    if path.endswith(".npy"):
        rows = size // (4 * COLUMNS)
        out = numpy.lib.format.open_memmap(path, "w+", "f4", (rows, COLUMNS))
        out.flush()
        start = os.path.getsize(path) - rows * 4 * COLUMNS
        del out
        with open(path, "r+b") as file:
            file.seek(start)
            for at in range(0, rows, len(part)):
                file.write(part[: rows - at].tobytes())
        return
    text = "\n".join(",".join("%.9g" % v for v in row) for row in part[:50_000].tolist()) + "\n"
    with open(path, "w") as file:
        file.write(",".join("x%d" % i for i in range(COLUMNS)) + "\n")
        while file.tell() < size:
            file.write(text)


def capped(command):
    """Runs a command in the cgroup: seconds, exit status, peak, output."""
    group = Group(LIMIT)
    began = time.perf_counter()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              preexec_fn=group.join)  # fmt: skip
        took = time.perf_counter() - began
        return took, done.returncode, group.peak(), done.stdout
    finally:
        group.close()


def resume(path, places):
    """Seconds from load_state_dict to the first batch, with a server that was just started."""
    import memroom

    times = []
    first = memroom.Stream(path, batch_size=BATCH, budget="100MiB", shuffle=True, seed=1)
    state, batches = first.state_dict(), len(first)
    for place in places:
        time.sleep(2.5)  # the server before has ended
        stream = memroom.Stream(path, batch_size=BATCH, budget="100MiB", shuffle=True, seed=1)
        began = time.perf_counter()
        stream.load_state_dict({**state, "batch": int(place * batches)})
        next(iter(stream))
        times.append(time.perf_counter() - began)
    return times


PEERS = {
    ("npy", "torch DataLoader over memmap, shuffled"): """
import numpy, torch, sys
data = torch.from_numpy(numpy.load(sys.argv[1], mmap_mode="r+"))
chosen = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 1024, False)
for batch in torch.utils.data.DataLoader(data, sampler=chosen, batch_size=None): pass""",
    ("npy", "NumPy, all in memory"): """
import numpy, sys
numpy.load(sys.argv[1])""",
    ("csv", "pyarrow, in order"): """
import pyarrow.csv, sys
for batch in pyarrow.csv.open_csv(sys.argv[1]): pass""",
    ("csv", "pandas, all in memory"): """
import pandas, sys
pandas.read_csv(sys.argv[1])""",
}


def main():
    folder, size, form = sys.argv[1], int(float(sys.argv[2]) * 1e9), sys.argv[3]
    path = os.path.join(folder, "big." + form)
    make(path, size)
    size = os.path.getsize(path)
    binary = os.environ["MEMROOM_BINARY"]
    took, status, peak, out = capped([binary, "feed", "index", path])
    print("index: %.1f s, exit %d, peak %d MiB with file pages" % (took, status, peak / MIB))
    command = [binary, "feed", "bench", path, "--budget", "100MiB", "--json"]
    took, status, peak, out = capped(command)
    report = json.loads(out)["report"] if status == 0 else {}
    print(
        "memroom, shuffled epoch of %.1f GB: exit %d in %.0f s (%.0f MB/s), cgroup peak %d of "
        "%d MiB with file pages, the server's own %d MiB"
        % (size / 1e9, status, took, size / took / 1e6, peak / MIB, LIMIT / MIB,
           report.get("peak", 0) / MIB),
        flush=True,
    )  # fmt: skip
    draw = random.Random(3)
    places = [0, 0.999, *(draw.random() for _ in range(8))]
    times = resume(path, places)
    print(
        "resume to the first batch, fresh server, ten places: median %.0f ms, longest %.0f ms"
        % (1e3 * sorted(times)[len(times) // 2], 1e3 * max(times)),
        flush=True,
    )
    for (kind, name), program in PEERS.items():
        if kind != form:
            continue
        limit = os.environ.get("PEER_SECONDS", "40")
        command = ["timeout", limit, sys.executable, "-W", "ignore", "-c", program, path]
        took, status, peak, _ = capped(command)
        ended = {0: "finished", 124: "stopped", -9: "killed", 137: "killed"}
        print(
            "%s: %s after %.0f s, peak %d MiB" % (name, ended.get(status, status), took, peak / MIB)
        )


if __name__ == "__main__":
    main()
