"""Measures memroom on public training scripts (manifest.toml).

    zoo.py sources --mirrors DIR --to DIR          take the sources out of git mirrors
    zoo.py measure --sources DIR --what alone,watch,fit,hand,rehearse --results FILE ...
    zoo.py table --results FILE                    print what was measured
    zoo.py rehearse --sources DIR --results FILE   rehearse all, beside the card's figures

Results are one line a script and kind of run; what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import glob
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import data
import tomllib

HERE = Path(__file__).resolve().parent
KEEP = (".py", ".ipynb", ".json", ".yaml", ".yml", ".toml", ".txt")
CONTEXT = """
import torch
x = torch.nn.Conv2d(8, 8, 3).cuda()(torch.ones(1, 8, 64, 64).cuda()).flatten(1)
(x @ x.T).sum().backward()
free, total = torch.cuda.mem_get_info()
print(total - free - torch.cuda.memory_reserved())
"""
CARD = 125 << 30
REHEARSED = 3  # steps
SIZES = ("large", "half")  # a script with the batch that manifest names, and with half of it
LARGE_STEPS = 3
PACES = ("alone", "alone-2", "watch", "fit0.65", "hand")  # of which a pace: kind is made
Row = dict[str, Any]


def manifest(name: str) -> tuple[dict[str, list[str]], dict[str, Row]]:
    with (HERE / name).open("rb") as file:
        scripts = tomllib.load(file)
    return scripts.pop("repos"), scripts


def take_sources(repos: dict[str, list[str]], mirrors: Path, to: Path) -> None:
    """Writes the small text files of each repository at its commit, notebooks as scripts."""
    for name, (repo, commit, *folders) in repos.items():
        git = mirrors / repo.replace("/", "+") / "repo"
        git = git / ".git" if (git / ".git").exists() else git
        base = ["git", "--git-dir", str(git)]
        listed = subprocess.run(
            [*base, "ls-tree", "-r", "-l", commit, *folders],
            capture_output=True,
            text=True,
            check=True,
        )
        for line in listed.stdout.splitlines():
            meta, path = line.split("\t")
            mode, kind, blob, size = meta.split()
            wanted = path.endswith(KEEP) and kind == "blob" and mode != "120000"
            if not wanted or not size.isdigit() or int(size) > 300_000:
                continue
            shown = subprocess.run([*base, "cat-file", "blob", blob], capture_output=True)
            if shown.returncode == 0:  # a mirror may lack large files
                target = to / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if path.endswith(".ipynb"):
                    cells = json.loads(shown.stdout)["cells"]
                    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
                    target.with_suffix(".py").write_text("\n\n".join(code) + "\n")
                else:
                    target.write_bytes(shown.stdout)
        print(name, commit[:8], flush=True)


def read(path: str) -> dict[tuple[str, str], Row]:
    if not os.path.exists(path):
        return {}
    rows = map(json.loads, open(path))
    return {(row["script"], row["kind"]): row for row in rows}


class Zoo:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.scripts = manifest(options.manifest)[1]
        self.host = options.manifest == "tensorflow.toml"
        self.work = Path(options.work).resolve()
        self.lock = threading.Lock()
        self.room, self.taken = threading.Condition(), 0  # of the card, by scripts that are timed
        self.end = time.time() + options.seconds
        if options.what == "measure" and "fit" in options.kinds and not self.host:
            self.context = int(subprocess.check_output([options.python, "-c", CONTEXT]))
        self.rows = read(options.results)

    def prepare(self, name: str, size: str = "") -> Path:
        """Copies a script's repository, patches it and makes its data, once for each size."""
        script = self.scripts[name]
        place = self.work / (name + size)
        if (place / ".ready").exists():
            return place
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(Path(self.options.sources) / script["repo"], place)
        patch = list(script.get("patch", []))
        if size:
            rows = script["large"] // (2 if size == "half" else 1)
            patch.append(
                [script["run"], script["rows"], re.sub(r"\d+$", str(rows), script["rows"])]
            )
        for file, old, new in patch:
            text = (place / file).read_text()
            if old not in text:
                raise ValueError("%s: the patch of %s finds nothing" % (name, file))
            (place / file).write_text(text.replace(old, new))
        for wanted in script.get("data", []):
            maker, _, path = wanted.partition(":")
            shared = self.work / "made" / maker
            with self.lock:
                if not shared.exists():
                    shared.parent.mkdir(parents=True, exist_ok=True)
                    data.MAKERS[maker](shared)
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if shared.is_dir():
                shutil.copytree(
                    shared, target, dirs_exist_ok=True, symlinks=True, copy_function=os.link
                )
            else:
                shutil.copy(shared, target)
        (place / ".ready").touch()
        return place

    def pace(self, name: str, members: list[str]) -> None:
        """Times a script in several ways at once: they take turns of some steps."""
        if "hand" in members and "hand" not in self.scripts[name]:
            members = [m for m in members if m != "hand"]
        self.prepare(name)
        ring = self.work / ("ring-" + name)
        ring.write_bytes(b"")
        need = len(members) * (self.rows[name, "alone"].get("reserved", 0) + (1 << 30))
        with self.room:
            self.room.wait_for(lambda: not self.taken or self.taken + need <= CARD)
            self.taken += need
        waited = []
        with concurrent.futures.ThreadPoolExecutor(len(members)) as pool:
            for slot, member in enumerate(members):
                turn = {"ZOO_RING": str(ring), "ZOO_SLOT": "%d/%d" % (slot, len(members))}
                waited.append(pool.submit(self.measure, name, "pace-" + member, turn))
        with self.room:
            self.taken -= need
            self.room.notify_all()
        for done in waited:
            done.result()  # what broke is told

    def measure(self, name: str, kind: str, turn: dict[str, str] | None = None) -> None:
        if (name, kind) in self.rows or time.time() > self.end:
            return
        script = self.scripts[name]
        size = next((s for s in SIZES if kind.startswith(s)), "")
        if size and "large" not in script:
            return
        place = self.prepare(name, size)
        command = [self.options.python, *shlex.split(script["run"])]
        if kind.endswith("hand"):
            command += shlex.split(script["hand"])
        with tempfile.TemporaryDirectory() as folder:
            home = os.path.join(folder, "home")
            env = self.environment(script, place, folder, home, kind) | (turn or {})
            limit = min(self.options.limit, self.end - time.time())
            row = run(self.around(name, kind) + command, env, place / script.get("at", "."), limit)
            if row["exit"] == 124 and limit < self.options.limit:
                return  # cut by the end of all: measured when it goes on
            out = os.path.join(folder, "out.json")
            if os.path.exists(out) and kind != "rehearse":
                row |= json.load(open(out))
            row |= recorded(home)
            answer = row.pop("answer")
            if kind == "rehearse":
                row |= rehearsed(answer.replace(self.options.python, "python"))
        row |= {"script": name, "kind": kind}
        with self.lock:
            self.rows[name, kind] = row
            with open(self.options.results, "a") as results:
                results.write(json.dumps(row) + "\n")
        left_out = ("losses", "states", "text", "said", "script", "kind")
        print(
            "%-22s %-9s %s" % (name, kind, {k: v for k, v in row.items() if k not in left_out}),
            flush=True,
        )

    def environment(
        self, script: Row, place: Path, folder: str, home: str, kind: str
    ) -> dict[str, str]:
        paths = [str(HERE / "meter"), str(place)]
        if script.get("env", {}).get("PYTHONPATH") == "TIMM":
            paths.append(str(Path(self.options.sources).resolve() / "timm"))
        env = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(paths),
            MEMROOM_HOME=home,
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONWARNINGS="ignore",
        )
        steps = script["steps"]
        if kind.startswith(SIZES):
            steps = LARGE_STEPS * (2 if kind.startswith("half") else 1)
        env |= {"ZOO_OUT": os.path.join(folder, "out.json"), "ZOO_STEPS": str(steps)}
        env["ZOO_COUNT"] = script.get("count", "")
        if kind == "rehearse":  # seeded alike, and ended as early where that leaves something out
            env["ZOO_STEPS"] = str(REHEARSED if script.get("cut") else 0)
        if kind.startswith("pace"):
            env |= {"ZOO_GATE": str(self.work / "gate"), "ZOO_STEPS": "0"}
        if kind.startswith(("fit", "again", "exact")):
            env["ZOO_STATES"] = "1"
        return env

    def around(self, name: str, kind: str) -> list[str]:
        memroom = self.options.memroom
        kind = kind.removeprefix("pace-").removesuffix("-2")
        if kind in ("alone", "again", "hand", "large", "large-again", "half"):
            return []
        if kind in ("watch", "exact"):
            return [memroom, "run", "--summary", "--"]
        if kind == "rehearse":
            steps = ["--steps", str(REHEARSED + bool(self.scripts[name].get("cut")))]
            return [memroom, "plan", "--json", "--gpu", "h200", *steps, "--rehearse", "--"]
        base, share = (
            ("large" if kind.startswith("large") else "alone"),
            float(kind.split("fit")[1]),
        )
        alone = self.rows[name, base]
        fit = [memroom, "run", "--fit", "--forgetful", "--summary"]
        if "before" in alone:  # of what the steps took
            cap = alone["before"] + int(share * (alone["peak"] - alone["before"]))
            return [*fit, "--host-mem", str(cap), "--"]
        return [*fit, "--gpu-mem", str(int(share * alone["reserved"]) + self.context), "--"]


def run(command: list[str], env: dict[str, str], at: Path, limit: float) -> Row:
    began = time.time()
    process = subprocess.Popen(
        command,
        env=env,
        cwd=at,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, text = process.communicate(timeout=max(1.0, limit))
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            out, text = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, text = process.communicate()
        code = 124
    wall = round(time.time() - began, 1)
    return {"exit": code, "wall": wall, "text": (text + out)[-20000:], "answer": out}


def recorded(home: str) -> Row:
    """What memroom kept of the run: its findings and its own cost, and the attempts of fit."""
    row: Row = {}
    for path in glob.glob(os.path.join(home, "runs", "*", "summary.json")):
        summary = json.load(open(path))
        row["findings"] = [f["title"] for f in summary.get("findings") or []]
        row["probe_share"] = summary.get("probe_share")
    for path in glob.glob(os.path.join(home, "runs", "*", "fit.json")):
        attempts = json.load(open(path))["attempts"]
        said = [s["text"] for a in attempts for s in a.get("said", [])]
        row |= {"attempts": len(attempts), "said": said, "changed": attempts[-1].get("changed")}
    return row


def rehearsed(answer: str) -> Row:
    """What the plan says: of its interval, what is left for reserved bytes."""
    try:
        plan = json.loads(answer)
    except ValueError:
        return {}
    if "reserved_peak" not in plan:
        return {"why": plan.get("error", "")}
    rest = plan["device_peak"] - plan["reserved_peak"]
    return {
        "said_reserved": plan["reserved_peak"],
        "low": plan["low"] - rest,
        "high": plan["high"] - rest,
        "phases": {p["phase"]: p["reserved"] for p in plan.get("phases") or []},
        "warnings": plan.get("warnings") or [],
    }


def apart(a: list[float], b: list[float]) -> float | None:
    if not a or len(a) != len(b):
        return None
    return max(abs(x - y) / max(abs(x), 1e-9) for x, y in zip(a, b))


def keep(rows: dict[tuple[str, str], Row], path: str) -> None:
    """Writes what the table needs: distances instead of losses, and no output of the scripts."""
    small = ["exit", "steps", "ms", "blocks", "reserved", "allocated", "attempts", "probe_share"]
    small += ["said_reserved", "low", "high", "why", "wall"]
    with open(path, "w") as out:
        for (name, kind), row in sorted(rows.items()):
            kept = {"script": name, "kind": kind} | {k: row[k] for k in small if k in row}
            again = rows.get((name, "again"), {})
            if kind == "alone":
                kept["noise"] = apart(row.get("losses", []), again.get("losses", []))
            if kind.startswith("fit"):
                kept["losses_apart"] = apart(again.get("losses", []), row.get("losses", []))
                both = row.get("states") and again.get("states")
                kept["generators_same"] = row["states"] == again["states"] if both else None
            if kind != "again":
                out.write(json.dumps(kept) + "\n")


def table(rows: dict[tuple[str, str], Row], scripts: dict[str, Row]) -> None:
    names = sorted({name for name, _ in rows})
    print("| script | reserved, GiB | fit | losses apart | its own noise | generators |")
    print("|---|--:|---|--:|--:|---|")
    for name in names:
        alone, fit = rows.get((name, "alone"), {}), rows.get((name, "fit0.65"), {})
        done = fit.get("exit") == 0 and fit.get("steps", 0) >= alone.get("steps", 1)
        cells = [name, "%.2f" % (alone["reserved"] / 2**30) if "reserved" in alone else "-"]
        cells.append("%d launches" % fit.get("attempts", 1) if done else "no" if fit else "-")
        for distance in (fit.get("losses_apart"), alone.get("noise")):
            cells.append("-" if distance is None else "%.1e" % distance)
        same = fit.get("generators_same")
        cells.append("-" if same is None else "same" if same else "differ")
        print("| " + " | ".join(cells) + " |")
    print()
    print("| script | ms a step | a second run | watched | its own account | fit | by hand |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in names:
        blocks = rows.get((name, "pace-alone"), {}).get("blocks")
        if not blocks:
            continue
        shown = ["%.1f" % min(blocks)]
        for kind in PACES[1:]:
            times = slower(rows, scripts, name, kind, "alone")
            shown.append("-" if times is None else "%.3f x" % times)
        share = rows.get((name, "watch"), {}).get("probe_share")
        shown.insert(3, "%.2f %%" % (100 * share) if share is not None else "-")
        print("| " + " | ".join([name, *shown]) + " |")


def rehearsals(rows: dict[tuple[str, str], Row], card: dict[tuple[str, str], Row]) -> None:
    """What each rehearsal says beside what the card reserved, and how many are how near."""
    counts: dict[str, int] = {}
    print("| script | reserved, GiB | said | high by low | s | |")
    print("|---|--:|--:|--:|--:|---|")
    for (name, kind), row in sorted(rows.items()):
        if kind != "rehearse":
            continue
        true, said = card.get((name, "alone"), {}).get("reserved"), row.get("said_reserved")
        cells, word = [name, "-", "-", "-", "%.0f" % row["wall"]], "no figure of the card"
        if true:
            cells[1] = "%.2f" % (true / 2**30)
        if said:
            cells[3] = "%.2f" % (row["high"] / row["low"])
        if said and true:
            off = said / true - 1
            cells[2] = "%+.2f %%" % (100 * off)
            near = "equal" if off == 0 else "within 1 %" if abs(off) <= 0.01 else "further"
            inside = row["low"] <= true <= row["high"]
            word = near + ("" if inside else ", outside its interval")
        elif not said:
            word = "no answer"
        counts[word] = counts.get(word, 0) + 1
        why = "" if said else ": " + (row.get("why") or "exit %s" % row["exit"]).strip()
        print("| " + " | ".join([*cells, word + why.replace("\n", " ")[:200]]) + " |")
    print()
    for word, count in sorted(counts.items()):
        print("%s: %d" % (word, count))


def slower(
    rows: dict[tuple[str, str], Row], scripts: dict[str, Row], name: str, kind: str, than: str
) -> float | None:
    """How many times as long a step of a kind took as a step of another, each in its fastest turn.

    What else the machine does only makes a turn longer.
    """
    a, b = (rows.get((name, "pace-" + k), {}).get("blocks") for k in (kind, than))
    steps = {"hand": scripts[name].get("hand_steps", 1)}
    if not a or not b:
        return None
    return float(min(a) * steps.get(kind, 1) / (min(b) * steps.get(than, 1)))


def sums(rows: dict[tuple[str, str], Row], scripts: dict[str, Row]) -> None:
    """The figures of docs/measurements.md that are sums over the tables."""

    def got(name: str, kind: str) -> Row:
        return rows.get((name, kind), {})

    def through(name: str) -> bool:
        fit, steps = got(name, "fit0.65"), got(name, "alone")["steps"]
        return bool(fit.get("exit") == 0 and fit.get("steps", 0) >= steps)

    tried = [n for n in scripts if got(n, "alone").get("steps") and got(n, "fit0.65")]
    good = [n for n in tried if through(n)]
    for words, some in (
        ("through", tried),
        ("of those above 1 GiB", [n for n in tried if got(n, "alone")["reserved"] > 1 << 30]),
        ("of those kept back", [n for n in tried if scripts[n].get("kept")]),
    ):
        print("%s: %d of %d" % (words, len([n for n in some if n in good]), len(some)))
    same = [got(n, "fit0.65").get("generators_same") for n in good]
    print("generators the same: %d of %d" % (same.count(True), len(same) - same.count(None)))
    both = [(got(n, "fit0.65").get("losses_apart"), got(n, "alone").get("noise")) for n in good]
    known = [(a, own) for a, own in both if a is not None and own is not None]
    near = [a <= max(1e-4, 2 * own) for a, own in known]
    print("losses within 1e-4 or twice their noise: %d of %d" % (sum(near), len(near)))
    for words, kind, than in (
        ("a second run by the first", "alone-2", "alone"),
        ("watched by alone", "watch", "alone"),
        ("fit by hand", "fit0.65", "hand"),
        ("fit by alone", "fit0.65", "alone"),
    ):
        found = [slower(rows, scripts, name, kind, than) for name in scripts]
        times = sorted(t for t in found if t is not None)
        if times:
            print("%s, times: %s" % (words, " ".join("%.3f" % t for t in times)))
            print("  %d scripts, median %.4f" % (len(times), statistics.median(times)))
    shares = [row["probe_share"] for (_, k), row in rows.items() if k == "watch"]
    if shares:
        print("the probe's own account: median %.2f %%" % (100 * statistics.median(shares)))


def host_table(rows: dict[tuple[str, str], Row]) -> None:
    """Scripts in TensorFlow on a CPU: the same results, findings, and fit in less host memory."""
    print("| script | steps | MiB before them, and at most | under run | findings | fit |")
    print("|---|--:|--:|---|---|---|")
    for name in sorted({name for name, _ in rows}):
        alone, again, exact, fit = (
            rows.get((name, k), {}) for k in ("alone", "again", "exact", "fit0.7")
        )
        if not alone.get("steps"):
            print("| %s | does not run alone |" % name)
            continue
        same = "not run"
        if exact:
            equal = [exact.get(k) == alone[k] for k in ("losses", "states")]
            noisy = again.get("losses") != alone["losses"]
            same = "same" if all(equal) else "differs alone, too" if noisy else "DIFFERS"
        size = "%d, %d" % (alone["before"] >> 20, alone["peak"] >> 20)
        apart_by = apart(alone["losses"], fit.get("losses", []))
        ended = "-" if not fit else "no" if apart_by is None else "%.0e apart" % apart_by
        cells = [name, str(alone["steps"]), size, same, "; ".join(exact.get("findings", []))]
        print("| " + " | ".join([*cells, ended]) + " |")


def large_table(rows: dict[tuple[str, str], Row], scripts: dict[str, Row]) -> None:
    """Scripts with batches whose activations are what their steps take, under fit."""
    print(
        "| script | rows | MiB before, at most, cap | through | losses apart | done | s a batch |"
    )
    print("|---|--:|--:|---|--:|---|--:|")
    for name in sorted({name for name, kind in rows if kind == "large-fit0.7"}):
        alone, fit, half = (rows.get((name, k), {}) for k in ("large", "large-fit0.7", "half"))
        before, peak = alone["before"], alone["peak"]
        cap = before + int(0.7 * (peak - before))
        far = apart(alone["losses"], fit.get("losses", []))
        done = "; ".join(t for t in fit.get("said", []) if "freed memory" not in t)
        spent = [(alone, 1), (fit, 1), (half, 2)]  # batches of half the rows count half
        times = [
            "%.1f" % (r["seconds"] * n / (r["steps"] - 1)) if "seconds" in r else "-"
            for r, n in spent
        ]
        cells = [
            name,
            str(scripts[name]["large"]),
            ", ".join(str(b >> 20) for b in (before, peak, cap)),
        ]
        cells += ["no" if far is None else "yes", "-" if far is None else "%.0e" % far]
        print("| " + " | ".join([*cells, done, ", ".join(times)]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("sources", "measure", "rehearse", "table"))
    parser.add_argument("--mirrors", type=Path)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--manifest", default="manifest.toml")
    parser.add_argument("--sources")
    parser.add_argument("--work", default="zoo-work")
    parser.add_argument("--results", default="zoo.jsonl")
    parser.add_argument("--keep", help="with table: a file for the rows that the tables need")
    parser.add_argument("--memroom", default="memroom")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--kinds", default="alone")
    parser.add_argument("--only", default="")
    parser.add_argument("--kept", action="store_true", help="take those that were kept back, too")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one run")
    parser.add_argument("--seconds", type=float, default=3600, help="seconds for all")
    options = parser.parse_args()
    options.memroom = shutil.which(options.memroom) or options.memroom
    options.memroom = os.path.abspath(options.memroom)  # scripts run in folders of their own
    if options.what == "sources":
        return take_sources(manifest(options.manifest)[0], options.mirrors, options.to)
    if options.what == "rehearse":
        options.kinds, options.kept = "rehearse", True
    zoo = Zoo(options)
    if options.what == "table":
        if options.keep:
            return keep(zoo.rows, options.keep)
        if zoo.host:
            host_table({k: row for k, row in zoo.rows.items() if not k[1].startswith(SIZES)})
            return large_table(zoo.rows, zoo.scripts)
        table(zoo.rows, zoo.scripts)
        return sums(zoo.rows, zoo.scripts)
    names = options.only.split(",") if options.only else list(zoo.scripts)
    names = [n for n in names if options.kept or options.only or not zoo.scripts[n].get("kept")]

    def one(work: tuple[str, str]) -> None:
        name, kind = work
        try:
            first = "large" if kind.startswith(SIZES) else "alone"
            base = zoo.rows.get((name, first), {})
            if kind != "rehearse" and kind != first and not base.get("steps"):
                return
            if kind.startswith("pace:"):
                zoo.pace(name, kind.removeprefix("pace:").split("+"))
            elif kind != "hand" or "hand" in zoo.scripts[name]:
                zoo.measure(name, kind)
        except Exception as error:  # one script must not end the others
            print("%s %s: %r" % (name, kind, error), flush=True)

    kinds = options.kinds.split(",")

    def all_kinds(name: str) -> None:
        for kind in kinds:
            one((name, kind))

    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(all_kinds, names))
    if options.what == "rehearse":
        rehearsals(zoo.rows, read(str(HERE / "h200.jsonl")))


if __name__ == "__main__":
    main()
