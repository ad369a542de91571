"""memroom.share beside the plain list, under torch's DataLoader.

For each number of workers: three epochs over the same samples; items a second of wall-clock time
and of processor time (which a busy machine disturbs less), and the memory that the group of
processes uses at the end of each epoch (the charge of a memory cgroup of its own where one can be
made, else the proportional set size: each page once either way).

    PYTHON bench/feed/share.py [--samples N] [--workers 1,4,8] [--start fork,spawn] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path.insert(0, os.path.join(ROOT, "probe", "pip"))
KINDS = ("captions", "features", "paths")
CGROUP = "/sys/fs/cgroup/memory"


def sample(kind, i):
    if kind == "captions":  # what a captioning or chat data set holds
        return {"id": i, "text": "a caption of some words, number %d" % i, "boxes": [i, 1, 2, 3]}
    if kind == "features":
        import numpy

        return numpy.full(64, i, "f4"), i % 10
    return "/data/train/class_%03d/image_%07d.jpg" % (i % 1000, i), i % 1000


def collate(samples):
    return len(samples)


def measure(arguments):
    """One configuration, in this process."""
    import memroom
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # more workers than cores is what is measured
    group = cgroup_of_self()
    samples = [sample(arguments.kind, i) for i in range(arguments.samples)]
    if arguments.side == "share":
        samples = memroom.share(samples)
    loader = torch.utils.data.DataLoader(
        samples,
        batch_size=64,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=True,
        multiprocessing_context=arguments.start,
        generator=torch.Generator().manual_seed(1),
        collate_fn=collate if arguments.collate == "none" else None,
    )
    rates, work, memory, charge = [], [], [], []
    for epoch in range(3):
        start, used = time.perf_counter(), processor_seconds()
        for batch in loader:
            pass
        rates.append(arguments.samples / (time.perf_counter() - start))
        work.append(arguments.samples / (processor_seconds() - used))
        memory.append(proportional())
        charge.append(anonymous_and_shared(group))
    print(json.dumps({"rates": rates, "work": work, "pss": memory, "charge": charge}))


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


def child(arguments, side, kind, workers, start):
    command = [sys.executable, __file__, "--side", side, "--kind", kind, "--start", start]
    command += ["--workers", str(workers), "--samples", str(arguments.samples)]
    command += ["--collate", arguments.collate]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    out, _ = process.communicate()
    try:
        os.rmdir(os.path.join(CGROUP, "memroom-bench-%d" % process.pid))
    except OSError:
        pass  # none was made
    if process.returncode:
        raise SystemExit("share.py: %s failed with %d" % (command, process.returncode))
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=200000)
    parser.add_argument("--workers", default="1,4,8")
    parser.add_argument("--start", default="fork")
    parser.add_argument("--kind", default="")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--side", default="")
    parser.add_argument("--collate", default="default", help="default, or none: indexing alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.side:
        arguments.workers = int(arguments.workers)
        return measure(arguments)
    if not arguments.json:
        print("Ratios: memroom.share to the plain list, best of epochs 2 and 3.")
        print("samples   start    w |    list/s   share/s  ratio | per CPU s | MiB: list; share")
    for kind in arguments.kinds.split(","):
        for start in arguments.start.split(","):
            for workers in map(int, arguments.workers.split(",")):
                rows = {s: child(arguments, s, kind, workers, start) for s in ("list", "share")}
                show(arguments, kind, start, workers, rows)


def show(arguments, kind, start, workers, rows):
    if arguments.json:
        print(json.dumps({"kind": kind, "start": start, "workers": workers, **rows}), flush=True)
        return
    best = {side: max(row["rates"][1:]) for side, row in rows.items()}
    work = {side: max(row["work"][1:]) for side, row in rows.items()}
    mib = {}
    for side, row in rows.items():
        used = row["charge"] if row["charge"][0] else row["pss"]
        mib[side] = " ".join("%d" % (x >> 20) for x in used)
    print(
        "%-9s %-6s %3d | %9.0f %9.0f %6.2f | %9.2f | %s; %s"
        % (
            kind,
            start,
            workers,
            best["list"],
            best["share"],
            best["share"] / best["list"],
            work["share"] / work["list"],
            mib["list"],
            mib["share"],
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
