"""The one table of bench/feed/all: what its drivers printed, beside peers and bars.

python bench/feed/table.py FOLDER
"""

import os
import re
import sys

FORMATS = ("parquet", "csv", "jsonl", "npy", "arrow", "tar", "images")


def lines(folder, name):
    try:
        with open(os.path.join(folder, name + ".txt")) as file:
            return file.read().splitlines()
    except OSError:
        return []


def first(pattern, found):
    for line in found:
        match = re.search(pattern, line)
        if match:
            return match.groups()
    return None


def streams(folder):
    """(format, reader, rows/s, MB/s, rows/cpu-s, added MiB, in all, mixed) of every reader."""
    for form in FORMATS:
        for line in lines(folder, "stream-" + form):
            match = re.match(r"%s\s+(.+?)\s{2,}%s" % (form, r"(\d+)\s+" * 6), line + " ")
            if match:
                yield (form, match.group(1), *map(int, match.groups()[1:]))


def said(value, good):
    return "%s (%s)" % (value, "met" if good else "MISSED")


def rows(folder):
    readers = list(streams(folder))
    for form in FORMATS:
        own = [r for r in readers if r[0] == form and r[1].startswith("memroom")]
        beside = [line for line in lines(folder, "stream-" + form) if line.startswith("beside")]
        shuffling = [line for line in beside if "does not shuffle" not in line]
        if not own or not shuffling:
            continue
        met = [line for line in shuffling if line.endswith(": met")]
        ours = "%dk rows/s, %dk a cpu-s, %d MiB" % (own[0][2] / 1e3, own[0][4] / 1e3, own[0][5])
        ours += ", mixed %d %%; %d of %d peers beaten with no more memory" % (
            *(own[0][7], len(met), len(shuffling)),
        )
        text = "; ".join(re.sub(r"\s{2,}", ": ", line[7:].replace(form, "", 1).strip())
                         for line in beside)  # fmt: skip
        good = len(met) == len(shuffling)
        yield "%s, shuffled" % form, said(ours, good), text, "faster at equal or less memory"
        if form == "csv":
            yield "CSV end to end", said("%d MB/s" % own[0][3], own[0][3] >= 300), "", "300 MB/s"
    for line in lines(folder, "stall"):
        match = re.match(r"(\w+)\s+memroom.*blocked ([\d.]+) %, in all ([\d.]+) %", line)
        if match:
            form, blocked, total = match.groups()
            ours = "blocked %s %%, with the cost of a call %s %%" % (blocked, total)
            yield "stall at 5 ms, " + form, said(ours, float(blocked) < 1), "", "1 %"
    ratios = [m for m in (re.match(r"(\w+)\s+(\d+) \|.*?\|\s+([\d.]+) (ok|miss)", line)
                          for line in lines(folder, "share")) if m]  # fmt: skip
    if ratios:
        last = {match.group(1, 2): match for match in ratios}  # a cell measured again counts then
        below = [m for m in last.values() if m.group(4) == "miss"]
        ours = "%d of %d at 0.90 or more" % (len(last) - len(below), len(last))
        if len(ratios) > len(last):
            ours += " (%d of them measured again, three times as long)" % (len(ratios) - len(last))
        if below:
            ours += "; below: " + ", ".join("%s %s: %s" % m.group(1, 2, 3) for m in below)
        yield "share, items/s beside the plain data", said(ours, not below), "", "0.90"
    found = first(r"(\d+ runs), (\d+) above the budget.*largest (\d+) %", lines(folder, "budget"))
    if found:
        ours = "%s, %s above, largest %s %%" % found
        yield "budget, mixed formats", said(ours, found[1] == "0"), "", "0 above"
    for line in lines(folder, "train"):
        match = re.match(r"(\w+): .*cgroup of (\d+) MiB.*peak (\d+).*losses (.*)", line)
        if match:
            name, cap, peak, losses = match.groups()
            ours = "peak %s of %s MiB, losses %s" % (peak, cap, losses)
            yield "training on 4 x the cap, " + name, said(ours, "equal" in losses), "", "equal"
    for form in ("npy", "csv"):
        found = first(r"exit (\d+) in (\d+) s .*peak (\d+) of (\d+)", lines(folder, "cap-" + form))
        if found:
            ours = "exit %s in %s s, peak %s of %s MiB" % found
            others = [x for x in lines(folder, "cap-" + form) if "peak" in x and "MiB" in x][2:]
            good = found[0] == "0"
            yield "8 GB %s in 128 MiB" % form, said(ours, good), "; ".join(others), "finishes"
        found = first(r"median (\d+) ms, longest (\d+) ms", lines(folder, "cap-" + form))
        if found:
            ours = "median %s ms, longest %s ms" % found
            yield "resume, 8 GB %s" % form, said(ours, int(found[1]) < 100), "", "100 ms"


def main():
    folder = sys.argv[1]
    print("| what | memroom | peers | bar |\n|---|---|---|---|")
    for row in rows(folder):
        print("| %s |" % " | ".join(row))


if __name__ == "__main__":
    main()
