"""Runs several files of these tests, each in a process of its own that has torch already: importing
it and the compiler takes longer than most of the files.

Prints a line of JSON for each: its name, whether it passed, what it printed. It is called from
`python -c`, so that no script is there: what a script says is part of some decisions.
"""

import importlib
import json
import os
import sys
import tempfile
import unittest


def run(name: str) -> None:
    """Runs one file and ends this process."""
    os.dup2(1, 2)
    passed = False
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(name)
        passed = unittest.TextTestRunner(stream=sys.stdout).run(suite).wasSuccessful()
    finally:
        sys.stdout.flush()
        os._exit(0 if passed else 1)


def main(jobs: int, names: list) -> None:
    importlib.import_module("torch._inductor.compile_fx")  # what four of the files would import
    importlib.import_module("training")  # imports torch and the compiler
    running, waiting = {}, list(names)
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            said = tempfile.TemporaryFile()
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 1)
                run(name)
            running[child] = (name, said)
        child, status = os.wait()
        name, said = running.pop(child)
        said.seek(0)
        text = said.read().decode(errors="replace")
        print(json.dumps({"name": name, "passed": status == 0, "said": text}), flush=True)
