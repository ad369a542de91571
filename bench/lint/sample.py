#!/usr/bin/env python3
"""sample.py MEMROOM FOLDER [--count N] [--seed N]

Draws findings of lint to be read one by one: runs `memroom lint --json` on every folder in FOLDER
(one repository each), leaves out files and findings that are copies of others, and prints a seeded
random sample, each finding with the lines around it. Standard library only.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Set, Tuple

AROUND = 12  # lines shown above a finding, and half as many below


def answers(memroom: str, folder: str) -> Iterator[Dict[str, Any]]:
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.isdir(path):
            continue
        done = subprocess.run(
            [memroom, "lint", "--json", "--severity", "info", path],
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode not in (0, 1):
            print("%s: exit %d" % (name, done.returncode), file=sys.stderr)
            continue
        yield json.loads(done.stdout)


def lines_of(finding: Dict[str, Any]) -> List[str]:
    """The code that a finding counts its lines in: a file, or a cell of a notebook."""
    try:
        with open(finding["file"], encoding="utf-8", errors="replace") as file:
            text = file.read()
        if finding.get("cell"):
            cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
            text = "".join(cells[finding["cell"] - 1]["source"])
    except (OSError, ValueError, KeyError, IndexError):
        return []
    return text.splitlines()


def distinct(found: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Without copies: the same rule at the same three lines of code counts once."""
    seen: Set[Tuple[str, str]] = set()
    kept = []
    for finding in found:
        at = finding["line"] - 1
        near = "".join("".join(lines_of(finding)[max(0, at - 1) : at + 2]).split())
        mark = (finding["rule"], hashlib.sha256(near.encode()).hexdigest())
        if mark not in seen:
            seen.add(mark)
            kept.append(finding)
    return kept


def show(number: int, finding: Dict[str, Any]) -> None:
    where = "%s:%d" % (finding["file"], finding["line"])
    print("=== %d  %s  %s  %s" % (number, finding["rule"], finding["severity"], where))
    print("    %s" % finding["message"])
    at = finding["line"] - 1
    first = max(0, at - AROUND)
    for i, line in enumerate(lines_of(finding)[first : at + AROUND // 2], first):
        print("%s %s" % (">" if i == at else " ", line[:140]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("memroom")
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    read = list(answers(given.memroom, given.folder))
    told = [f for answer in read for f in answer["findings"]]
    found = distinct(sorted(told, key=lambda f: (f["file"], f["line"], f["rule"])))
    drawn = random.Random(given.seed).sample(found, min(given.count, len(found)))
    print(
        "%d files, %d told, %d without copies, %d drawn with seed %d"
        % (sum(a["files"] for a in read), len(told), len(found), len(drawn), given.seed)
    )
    for number, finding in enumerate(sorted(drawn, key=lambda f: (f["file"], f["line"])), 1):
        show(number, finding)


if __name__ == "__main__":
    main()
