"""memroom.share beside the plain data, under torch's DataLoader.

For each kind of samples and each number of workers both sides run in a process of their own and
take turns, epoch by epoch, so that other work on the machine disturbs both. The first epoch of
each is not counted: it starts the workers and, on the plain side, copies pages. At least --epochs
pairs follow, and more until --seconds have passed, because single epochs spread by a third. What
is below the bar is measured once more, three times as long, and both results are printed. Printed
are items a second (the median of the epochs), the median ratio of the pairs, the same for items a
second of processor time, the number of pairs, and the memory of each side's processes after the
first and the last epoch (the charge of a memory cgroup where one can be made, else the proportional
set size: each page counts once either way). Samples are collated as people do it: arrays of many
lengths are padded, others go through torch's own function. --collate none drops them instead, which
is indexing alone.

    PYTHON bench/feed/share.py [--samples N] [--workers 1,4,8] [--start fork|spawn] [--kinds ...]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path.insert(0, os.path.join(ROOT, "python"))
CGROUP = "/sys/fs/cgroup/memory"
BAR = 0.9


def records(i):
    return {"id": i, "name": "name of %d" % i, "label": i % 10, "score": i * 0.5}


def captions(i):  # what a captioning or chat data set holds
    return {"id": i, "text": "a caption of some words, number %d" % i, "boxes": [i, 1, 2, 3]}


def paths(i):
    return "/data/train/class_%03d/image_%07d.jpg" % (i % 1000, i), i % 1000


def nested(i):
    marks = [{"box": [1.0, 2.0, 3.0, i * 0.1], "class": i % 80} for _ in range(2)]
    return {
        "meta": {"id": i, "tags": ["a%d" % (i % 7), "b"], "size": (i % 640, 480)},
        "marks": marks,
    }


def features(i):
    import numpy

    return numpy.full(64, i, "f4"), i % 10


def arrays(i):
    import numpy

    return numpy.full(256, i, "f4")


def ragged(i):  # tokens of texts: every array has a length of its own
    import numpy

    return {"tokens": numpy.arange(16 + i % 64, dtype="i4"), "label": i % 10}


def tensors(i):
    import torch

    return {"x": torch.full((64,), float(i)), "y": i % 10}


def detections(i):  # pictures with boxes: arrays in dicts in dicts, some without rows
    import numpy

    target = {"boxes": numpy.full((i % 4, 4), i, "f4"), "labels": numpy.full(i % 4, i % 80)}
    return {"image": numpy.full((3, 8, 8), i % 256, "u1"), "target": target, "id": i}


class Rows:
    """A frame or an Arrow table as people read it: one row at a time."""

    def __init__(self, data):
        self.data = data
        self.frame = hasattr(data, "iloc")

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        if self.frame:
            return self.data.iloc[index].to_dict()
        return self.data.slice(index, 1).to_pylist()[0]


class Samples:
    """The data set that most people write around a list."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def frame(count):
    import pandas

    return pandas.DataFrame([records(i) for i in range(count)])


def table(count):
    import pyarrow

    return pyarrow.Table.from_pandas(frame(count))


PLAIN = (records, captions, paths, nested, features, arrays, ragged, detections, tensors)
KINDS = {kind.__name__: kind for kind in (*PLAIN, frame, table)}


def count_only(samples):
    return len(samples)


def pad(samples):
    import torch

    tokens = [torch.tensor(sample["tokens"]) for sample in samples]
    labels = torch.tensor([sample["label"] for sample in samples])
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True), labels


def gather(samples):
    """Boxes of all pictures in one array, with the picture of each."""
    import numpy
    import torch

    images = torch.from_numpy(numpy.stack([sample["image"] for sample in samples]))
    found = [sample["target"] for sample in samples]
    boxes, labels = (
        torch.from_numpy(numpy.concatenate([target[name] for target in found]))
        for name in ("boxes", "labels")
    )
    return images, boxes, labels, torch.tensor([len(target["labels"]) for target in found])


COLLATE = {ragged: pad, detections: gather}


def measure(arguments):
    """One side of one kind: an epoch for every line that comes in, with that many workers."""
    import memroom
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # more workers than cores is what is measured
    group = cgroup_of_self()
    make = KINDS[arguments.kind]
    tabular = make in (frame, table)
    count = arguments.samples // 4 if tabular else arguments.samples
    data = make(count) if tabular else [make(i) for i in range(count)]
    if arguments.side == "share":
        data = memroom.share(data)
    collate = count_only if arguments.collate == "none" else COLLATE.get(make)
    data = Rows(data) if tabular else Samples(data)
    loader, now = None, 0
    print("ready", flush=True)
    for line in sys.stdin:
        if int(line) != now:
            now = int(line)
            loader = torch.utils.data.DataLoader(
                data,
                batch_size=64,
                shuffle=True,
                num_workers=now,
                persistent_workers=True,
                multiprocessing_context=arguments.start,
                generator=torch.Generator().manual_seed(1),
                collate_fn=collate,
            )
        start, used = time.perf_counter(), processor_seconds()
        for batch in loader:
            pass
        rate = count / (time.perf_counter() - start)
        work = count / max(processor_seconds() - used, 0.01)
        used = anonymous_and_shared(group)
        print(
            json.dumps({"rate": rate, "work": work, "memory": used or proportional()}), flush=True
        )


def family():
    """This process and its descendants."""
    pids = [os.getpid()]
    for pid in pids:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            pids += map(int, file.read().split())
    return pids


def processor_seconds():
    total = 0
    for pid in family():
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def proportional():
    """What this process and its children use, each page once."""
    total = 0
    for pid in family():
        try:
            with open("/proc/%d/smaps_rollup" % pid) as file:
                total += sum(int(x.split()[1]) for x in file if x.startswith("Pss:")) << 10
        except OSError:
            continue  # it has just ended
    return total


def cgroup_of_self():
    path = os.path.join(CGROUP, "memroom-bench-%d" % os.getpid())
    try:
        os.mkdir(path)
        with open(os.path.join(path, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
        return path
    except OSError:
        return None


def anonymous_and_shared(group):
    """The charge that cannot be reclaimed: anonymous pages and shared memory."""
    if group is None:
        return None
    with open(os.path.join(group, "memory.stat")) as file:
        stat = dict(line.split() for line in file)
    return int(stat["total_rss"]) + int(stat.get("total_shmem", 0))


class Side:
    def __init__(self, arguments, side, kind):
        command = [sys.executable, __file__, "--side", side, "--kind", kind]
        command += ["--start", arguments.start, "--samples", str(arguments.samples)]
        command += ["--collate", arguments.collate]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.line()

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("share.py: a side ended with %s" % self.process.wait())
        return line

    def epoch(self, workers):
        self.process.stdin.write("%d\n" % workers)
        self.process.stdin.flush()
        return json.loads(self.line())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        try:
            os.rmdir(os.path.join(CGROUP, "memroom-bench-%d" % self.process.pid))
        except OSError:
            pass  # none was made


def compare(arguments, kind):
    sides = {name: Side(arguments, name, kind) for name in ("plain", "share")}
    try:
        for workers in map(int, arguments.workers.split(",")):
            first = turns(arguments, sides, workers, arguments.seconds)
            if show(arguments, kind, workers, first) < BAR:
                again = turns(arguments, sides, workers, 3 * arguments.seconds)
                show(arguments, kind, workers, again, "  again")
    finally:
        for side in sides.values():
            side.close()


def turns(arguments, sides, workers, seconds):
    rows = {name: [] for name in sides}
    epoch, until = 0, time.perf_counter() + seconds
    while epoch <= arguments.epochs or time.perf_counter() < until:
        order = sorted(sides) if epoch % 2 else sorted(sides, reverse=True)
        for name in order:
            rows[name].append(sides[name].epoch(workers))
        epoch += 1
    return rows


def show(arguments, kind, workers, rows, note=""):
    """Prints one line; gives the ratio."""
    best = {
        name: statistics.median(row["rate"] for row in found[1:]) for name, found in rows.items()
    }
    pairs = list(zip(rows["plain"][1:], rows["share"][1:]))
    mib = {
        name: [row["memory"] >> 20 for row in (found[0], found[-1])] for name, found in rows.items()
    }
    ratio, of_work = (
        statistics.median(share[what] / plain[what] for plain, share in pairs)
        for what in ("rate", "work")
    )
    if arguments.json:
        said = {"kind": kind, "workers": workers, "start": arguments.start, "ratio": ratio}
        said.update(pairs=len(pairs), again=bool(note))
        print(json.dumps({**said, "per_cpu": of_work, "mib": mib, "rates": best}), flush=True)
        return ratio
    print(
        "%-10s %2d | %9.0f %9.0f | %5.2f %s | %7.2f | %3d | %5d %5d | %5d %5d%s"
        % (
            *(kind, workers, best["plain"], best["share"], ratio),
            *("ok  " if ratio >= BAR else "miss", of_work, len(pairs)),
            *(*mib["plain"], *mib["share"], note),
        ),
        flush=True,
    )
    return ratio


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--epochs", type=int, default=3, help="that are counted, at least")
    parser.add_argument("--seconds", type=float, default=4, help="for each number of workers")
    parser.add_argument("--workers", default="1,4,8")
    parser.add_argument("--start", default="fork")
    parser.add_argument("--kind", default="")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--side", default="")
    parser.add_argument("--collate", default="default", help="default, or none: indexing alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.side:
        return measure(arguments)
    if not arguments.json:
        print(
            "                 items a second      ratio    ratio of        MiB, first, last epoch"
        )
        print("samples     w |     plain     share |  (0.90)  | CPU     |   n | plain     | share")
    for kind in arguments.kinds.split(","):
        compare(arguments, kind)


if __name__ == "__main__":
    main()
