"""Trains on data of four times the memory that the job may use, in a cgroup with that limit (v1 or
v2, as root), and again with all data in memory, without a limit, in the same order. Prints whether
the losses of all steps are equal, bit for bit.

The limit holds everything: Python, the framework, the server, pages of files.

    MEMROOM_BINARY=bin/memroom PYTHON bench/feed/train.py [--cap MIB] [--times N]

PYTHON is what `testenv/ensure feed` prints.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path.insert(0, os.path.join(ROOT, "python"))
FEATURES, BATCH, MIB = 62, 8192, 1 << 20  # a row: its number, 62 features, the target: 256 bytes


def make(path, size):
    rows = size // (4 * (FEATURES + 2))
    out = numpy.lib.format.open_memmap(path, "w+", "f4", (rows, FEATURES + 2))
    rng = numpy.random.default_rng(0)
    secret = rng.normal(size=FEATURES).astype("f4") / 8
    for start in range(0, rows, 1 << 16):
        part = out[start : start + (1 << 16)]
        part[:, 0] = numpy.arange(start, start + len(part))
        part[:, 1:-1] = rng.random((len(part), FEATURES), "f4") - 0.5
        part[:, -1] = numpy.tanh(part[:, 1:-1] @ secret)
    out.flush()
    return rows


def open_stream(path):
    import memroom

    return memroom.Stream(path, batch_size=BATCH, budget="96MiB", shuffle=True, seed=5)


def in_memory(path):
    """The same batches out of one array in memory; the stream gives their order alone."""
    order = [batch["data"][:, 0].astype("i8") for batch in open_stream(path)]
    data = numpy.load(path)
    return data, order


def train_torch(path, streamed):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if streamed:
        loader = torch.utils.data.DataLoader(open_stream(path).torch(), batch_size=None)
        batches = (batch["data"] for batch in loader)
    else:
        data, order = in_memory(path)
        batches = (torch.from_numpy(data[rows]) for rows in order)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch[:, 1:-1])[:, 0], batch[:, -1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_keras(path, streamed):
    import keras
    import tensorflow

    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    tensorflow.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")

    class Batches(keras.utils.PyDataset):
        def __init__(self, count, get):
            super().__init__()
            self.count, self.get = count, get

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            batch = self.get(index)
            return batch[:, 1:-1], batch[:, -1]

    if streamed:
        stream = open_stream(path)
        whole = stream.keras()
        batches = Batches(len(stream), lambda index: whole[index])
    else:
        data, order = in_memory(path)
        batches = Batches(len(order), lambda index: data[order[index]])
    losses = []

    class Listen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]))

    model.fit(batches, shuffle=False, callbacks=[Listen()], verbose=0)
    return losses


TRAINERS = {"torch": train_torch, "keras": train_keras}


def job(framework, path, streamed):
    losses = TRAINERS[framework](path, streamed)
    digest = hashlib.sha256(numpy.array(losses).tobytes()).hexdigest()[:16]
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({"losses": [losses[0], losses[-1]], "hash": digest, "rss": usage,
                      "steps": len(losses)}))  # fmt: skip


class Group:
    """A memory cgroup with a limit; gone at the end."""

    def __init__(self, limit):
        first = os.path.isdir("/sys/fs/cgroup/memory")
        root = "/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup"
        self.path = os.path.join(root, "memroom-train-%d-%d" % (os.getpid(), time.time_ns()))
        os.mkdir(self.path)
        self.files = (
            ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
            if first
            else ("memory.max", "memory.peak")
        )
        with open(os.path.join(self.path, self.files[0]), "w") as file:
            file.write(str(limit))

    def join(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))

    def peak(self):
        with open(os.path.join(self.path, self.files[1])) as file:
            return int(file.read())

    def close(self):
        for _ in range(200):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)  # the server ends two seconds after its last consumer


def run(framework, path, streamed, cap):
    group = Group(cap) if streamed else None
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", os.path.abspath(__file__)]
            + ["--job", framework, "--path", path, "--streamed", str(int(streamed))],
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("VERBOSE") else subprocess.DEVNULL,
            preexec_fn=group.join if group else None,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
        if done.returncode:
            return {"failed": done.returncode}
        found = json.loads(done.stdout.splitlines()[-1])
        return {**found, "peak": group.peak() if group else 0}
    finally:
        if group:
            group.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cap", type=int, default=512, help="MiB for the whole job")
    parser.add_argument("--times", type=float, default=4, help="size of the data, in caps")
    parser.add_argument("--frameworks", default="torch,keras")
    parser.add_argument("--job")
    parser.add_argument("--path")
    parser.add_argument("--streamed", type=int)
    arguments = parser.parse_args()
    if arguments.job:
        return job(arguments.job, arguments.path, arguments.streamed)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
        path, cap = os.path.join(folder, "a.npy"), arguments.cap * MIB
        rows = make(path, int(arguments.times * cap))
        for framework in arguments.frameworks.split(","):
            began = time.perf_counter()
            small = run(framework, path, True, cap)
            took = time.perf_counter() - began
            whole = run(framework, path, False, 0)
            same = "hash" in small and small.get("hash") == whole.get("hash")
            bad += not same
            if "failed" in small or "failed" in whole:
                print("%s: failed: capped %s, in memory %s" % (framework, small, whole))
                continue
            print(
                "%s: %d rows, %d MiB of data in a cgroup of %d MiB: %d steps in %.0f s, peak %d "
                "MiB with file pages; in memory %d MiB resident; loss %.4f to %.4f; losses %s"
                % (framework, rows, os.path.getsize(path) // MIB, arguments.cap, small["steps"],
                   took, small["peak"] // MIB, whole["rss"], *small["losses"],
                   "equal bit for bit" if same else "DIFFER")
            )  # fmt: skip
    return bad


if __name__ == "__main__":
    sys.exit(main())
