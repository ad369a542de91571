"""Records what a real TensorFlow asks of its BFC allocator and what the allocator answers.

Usage: record_bfc.py OUT.json.gz LIMIT_MB PROGRAM, in an environment with
TF_CPU_ALLOCATOR_USE_BFC=true, TF_CPU_BFC_MEM_LIMIT_IN_MB=LIMIT_MB, TF_BFC_MEMORY_DUMP=PREFIX and
TF_CPP_VMODULE=bfc_allocator=1 (the regions are only in the log: standard error must go to a file named by
MEMROOM_BFC_LOG). Events come from TensorFlow's own profiler, which takes them under the allocator's lock, so that
their order is the true one.
"""
import glob
import gzip
import json
import math
import os
import re
import resource
import sys
import tempfile

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2


def train():
    """A small network under tf.function with momentum: the steady pattern of training."""
    layers = [tf.Variable(tf.random.normal([a, b]) * 0.05) for a, b in ((300, 700), (700, 500), (500, 10))]
    slots = [tf.Variable(tf.zeros_like(w)) for w in layers]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            h = x
            for w in layers[:-1]:
                h = tf.nn.relu(h @ w)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h @ layers[-1]))
        for w, m, g in zip(layers, slots, tape.gradient(loss, layers)):
            m.assign(0.9 * m + g)
            w.assign_sub(0.01 * m)
        return loss

    for i in range(6):
        n = 64 + 37 * i  # another shape each step, so that chunks are cut and joined in many ways
        step(tf.random.normal([n, 300]), tf.random.uniform([n], maxval=10, dtype=tf.int32))


def shuffle():
    """Random sizes and lifetimes, eagerly."""
    import random
    rng = random.Random(7)
    held = []
    for _ in range(500):
        if held and rng.random() < 0.48:
            held.pop(rng.randrange(len(held)))
        else:
            held.append(tf.zeros([int(2 ** rng.uniform(0, 20))], tf.float32))


def exhaust():
    """Grows until the allocator gives up (TensorFlow waits ten seconds first)."""
    held = []
    try:
        for i in range(1000):
            n = 100_000 + 7_777 * (i % 13)
            held.append(tf.zeros([n], tf.float32))
            if i % 5 == 4:
                held.pop(i // 2 % len(held))
    except tf.errors.ResourceExhaustedError:
        return 4 * n


def pedal():
    """A driver that refuses: the address space is bounded below the allocator's limit, so that it must ask for less."""
    tf.zeros([1])  # starts TensorFlow's threads and the first region of 2 MiB
    with open("/proc/self/status") as f:
        now = int(re.search(r"VmSize:\s*(\d+) kB", f.read()).group(1)) << 10
    before = resource.getrlimit(resource.RLIMIT_AS)
    # Room for the regions of 4 to 32 MiB and for a part of the one of 64 MiB.
    resource.setrlimit(resource.RLIMIT_AS, (now + (116 << 20), before[1]))
    held = []
    for i in range(60):
        held.append(tf.zeros([300_000 + 11_111 * (i % 7)], tf.float32))
    resource.setrlimit(resource.RLIMIT_AS, before)


def events(logdir):
    found = []
    for path in glob.glob(os.path.join(logdir, "**", "*.xplane.pb"), recursive=True):
        space = xplane_pb2.XSpace()
        with open(path, "rb") as f:
            space.ParseFromString(f.read())
        for plane in space.planes:
            for line in plane.lines:
                for e in line.events:
                    name = plane.event_metadata[e.metadata_id].name
                    if name in ("MemoryAllocation", "MemoryDeallocation"):
                        stats = {plane.stat_metadata[s.metadata_id].name: getattr(s, s.WhichOneof("value")) for s in e.stats}
                        found.append((line.timestamp_ns * 1000 + e.offset_ps, name, stats))
    found.sort(key=lambda e: e[0])
    return found


def fragmentation(stats):
    f = float(stats["fragmentation"])
    return None if math.isnan(f) else f  # nothing free: TensorFlow divides zero by zero


def regions(log):
    """[address, bytes] of each region taken, in order."""
    ends = re.compile(r"Allocated memory at 0x([0-9a-f]+) to 0x([0-9a-f]+)")
    with open(log) as f:
        return [[int(a, 16), int(b, 16) - int(a, 16)] for a, b in ends.findall(f.read())]


def main():
    out, limit_mb, program = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as logdir:
        tf.profiler.experimental.start(logdir, tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0))
        failed = {"train": train, "shuffle": shuffle, "exhaust": exhaust, "pedal": pedal}[program]()
        info = tf.config.experimental.get_memory_info("CPU:0")
        tf.profiler.experimental.stop()
        rows = []
        for _, name, s in events(logdir):
            # kind, requested, address, chunk bytes, bytes in use after, peak, TensorFlow's fragmentation figure
            rows.append(["a" if name == "MemoryAllocation" else "f", int(s["requested_bytes"]), int(s["addr"]),
                         int(s["allocation_bytes"]), int(s["bytes_allocated"]), int(s["peak_bytes_in_use"]), fragmentation(s)])
    record = {"tensorflow": tf.__version__, "program": program, "limit": limit_mb << 20, "failed": failed or 0, "current": int(info["current"]),
              "peak": int(info["peak"]), "regions": regions(os.environ["MEMROOM_BFC_LOG"]), "events": rows}
    with gzip.open(out, "wt") as f:
        json.dump(record, f, separators=(",", ":"))


main()
