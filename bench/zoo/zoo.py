"""Measures memroom on public training scripts (manifest.toml).

    zoo.py sources --mirrors DIR --to DIR          take the sources out of git mirrors
    zoo.py measure --sources DIR --what alone,watch,fit,hand,rehearse --results FILE ...
    zoo.py table --results FILE                    print what was measured

Results are one line a script and kind of run; what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import glob
import json
import os
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
CONTEXT = 600 << 20  # bytes of a card outside the allocator: context, kernels, libraries
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


class Zoo:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.scripts = manifest(options.manifest)[1]
        self.host = options.manifest == "tensorflow.toml"
        self.work = Path(options.work).resolve()
        self.lock = threading.Lock()
        self.end = time.time() + options.seconds
        self.rows: dict[tuple[str, str], Row] = {}
        if os.path.exists(options.results):
            for line in open(options.results):
                row = json.loads(line)
                self.rows[row["script"], row["kind"]] = row

    def prepare(self, name: str) -> Path:
        """Copies a script's repository, patches it and makes its data, once."""
        script = self.scripts[name]
        place = self.work / name
        if (place / ".ready").exists():
            return place
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(Path(self.options.sources) / script["repo"], place)
        for file, old, new in script.get("patch", []):
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

    def measure(self, name: str, kind: str) -> None:
        if (name, kind) in self.rows or time.time() > self.end:
            return
        script = self.scripts[name]
        place = self.prepare(name)
        command = [self.options.python, *shlex.split(script["run"])]
        if kind == "hand":
            command += shlex.split(script["hand"])
        with tempfile.TemporaryDirectory() as folder:
            home = os.path.join(folder, "home")
            env = self.environment(script, place, folder, home, kind)
            row = run(
                self.around(name, kind) + command,
                env,
                place / script.get("at", "."),
                min(self.options.limit, self.end - time.time()),
            )
            out = os.path.join(folder, "out.json")
            if os.path.exists(out):
                row |= json.load(open(out))
            row |= recorded(home)
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
        if kind == "rehearse":
            env["PYTHONPATH"] = str(place)
            return env
        env |= {"ZOO_OUT": os.path.join(folder, "out.json"), "ZOO_STEPS": str(script["steps"])}
        env["ZOO_COUNT"] = script.get("count", "")
        if kind.startswith(("fit", "again", "exact")):
            env["ZOO_STATES"] = "1"
        return env

    def around(self, name: str, kind: str) -> list[str]:
        memroom = self.options.memroom
        if kind in ("alone", "again", "hand"):
            return []
        if kind in ("watch", "exact"):
            return [memroom, "run", "--summary", "--"]
        if kind == "rehearse":
            return [memroom, "plan", "--json", "--gpu", "140GiB", "--rehearse", "--"]
        share, alone = float(kind.removeprefix("fit")), self.rows[name, "alone"]
        fit = [memroom, "run", "--fit", "--forgetful", "--summary"]
        if "before" in alone:  # of what the steps took
            cap = alone["before"] + int(share * (alone["peak"] - alone["before"]))
            return [*fit, "--host-mem", str(cap), "--"]
        cap = int(share * alone["reserved"]) + CONTEXT
        return [*fit, "--gpu-mem", str(cap), "--"]


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
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=max(1.0, limit))
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            text, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
        code = 124
    return {"exit": code, "wall": round(time.time() - began, 1), "text": text[-6000:]}


def recorded(home: str) -> Row:
    """What memroom kept of the run: its findings, or the attempts of fit."""
    row: Row = {}
    for path in glob.glob(os.path.join(home, "runs", "*", "summary.json")):
        row["findings"] = [f["title"] for f in json.load(open(path)).get("findings") or []]
    for path in glob.glob(os.path.join(home, "runs", "*", "fit.json")):
        attempts = json.load(open(path))["attempts"]
        said = [s["text"] for a in attempts for s in a.get("said", [])]
        row |= {"attempts": len(attempts), "said": said, "changed": attempts[-1].get("changed")}
    return row


def apart(a: list[float], b: list[float]) -> float | None:
    if not a or len(a) != len(b):
        return None
    return max(abs(x - y) / max(abs(x), 1e-9) for x, y in zip(a, b))


def table(rows: dict[tuple[str, str], Row], scripts: dict[str, Row]) -> None:
    names = sorted({name for name, _ in rows})
    print(
        "| script | ms alone | watched | fit | losses apart | its own noise | generators |"
        " by hand, ms |"
    )
    print("|---|--:|--:|---|--:|--:|---|--:|")
    shares = []
    for name in names:
        alone, again = rows.get((name, "alone"), {}), rows.get((name, "again"), {})
        watched, hand = rows.get((name, "watch"), {}), rows.get((name, "hand"), {})
        cells = [name, "%.1f" % alone["ms"] if "ms" in alone else "-"]
        if "ms" in alone and "ms" in watched:
            shares.append(watched["ms"] / alone["ms"] - 1)
            cells.append("%+.2f %%" % (100 * shares[-1]))
        else:
            cells.append("-")
        fits = [row for (n, kind), row in rows.items() if n == name and kind.startswith("fit")]
        fit = fits[0] if fits else {}
        done = fit.get("exit") == 0 and fit.get("steps") == scripts[name]["steps"]
        launches = "%d launches, %.1f ms" % (fit.get("attempts", 1), fit.get("ms", 0))
        cells.append(launches if done else "no" if fit else "-")
        distance = fit.get("losses_apart")
        if distance is None:
            distance = apart(again.get("losses") or alone.get("losses", []), fit.get("losses", []))
        cells.append("-" if distance is None else "%.1e" % distance)
        noise = apart(alone.get("losses", []), again.get("losses", []))  # two runs without memroom
        cells.append("-" if noise is None else "%.1e" % noise)
        same = fit.get("generators_same")
        if same is None and again.get("states") and fit.get("states"):
            same = again["states"] == fit["states"]
        cells.append("-" if same is None else "same" if same else "differ")
        cells.append("%.1f" % hand["ms"] if "ms" in hand else "-")
        print("| " + " | ".join(cells) + " |")
    if shares:
        print(
            "watching: median %+.2f %%, worst %+.2f %%, %d scripts"
            % (100 * statistics.median(shares), 100 * max(shares), len(shares))
        )


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("sources", "measure", "table"))
    parser.add_argument("--mirrors", type=Path)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--manifest", default="manifest.toml")
    parser.add_argument("--sources")
    parser.add_argument("--work", default="zoo-work")
    parser.add_argument("--results", default="zoo.jsonl")
    parser.add_argument("--memroom", default="memroom")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--kinds", default="alone")
    parser.add_argument("--only", default="")
    parser.add_argument("--kept", action="store_true", help="take those that were kept back, too")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one run")
    parser.add_argument("--seconds", type=float, default=3600, help="seconds for all")
    options = parser.parse_args()
    if options.what == "sources":
        return take_sources(manifest(options.manifest)[0], options.mirrors, options.to)
    zoo = Zoo(options)
    if options.what == "table":
        return host_table(zoo.rows) if zoo.host else table(zoo.rows, zoo.scripts)
    names = options.only.split(",") if options.only else list(zoo.scripts)
    names = [n for n in names if options.kept or options.only or not zoo.scripts[n].get("kept")]

    def one(work: tuple[str, str]) -> None:
        name, kind = work
        try:
            base = zoo.rows.get((name, "alone"), {})
            if kind != "rehearse" and kind != "alone" and not base.get("steps"):
                return
            if kind != "hand" or "hand" in zoo.scripts[name]:
                zoo.measure(name, kind)
        except Exception as error:  # one script must not end the others
            print("%s %s: %r" % (name, kind, error), flush=True)

    kinds = options.kinds.split(",")
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        if options.at_once == 1:
            list(pool.map(one, [(n, k) for n in names for k in kinds]))
        else:
            for kind in kinds:
                list(pool.map(one, [(n, kind) for n in names]))


if __name__ == "__main__":
    main()
