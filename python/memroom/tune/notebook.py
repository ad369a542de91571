"""Trials of a study that is started in a notebook.

A trial is a process of its own, and a notebook is no script that could be started again. So the
training function is written to a file with what it uses: functions and classes of the notebook by
their source, as the cells that were run last define them, modules by their names, everything else
by value. Cells are not run again.
"""

import ast
import os
import pickle
import subprocess
import sys
import types
from typing import Any, Dict, List, Optional, Set, Tuple


def shell() -> Optional[Any]:
    """IPython's shell where this program is one; None: it is not."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _definitions(cells: List[str], transform: Any) -> Dict[str, str]:
    """The source of each function and class at the top of a cell; later cells win."""
    found: Dict[str, str] = {}
    for cell in cells:
        try:
            text = transform(cell)
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        lines = text.splitlines()
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                first = min([node.lineno] + [d.lineno for d in node.decorator_list])
                found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


class _Gathered:
    """What a function needs to run somewhere else."""

    def __init__(self, names: Dict[str, Any], sources: Dict[str, str]) -> None:
        self.names, self.sources = names, sources
        self.imports: Dict[str, str] = {}
        self.defined: List[str] = []  # sources, each after what it needs to be defined
        self.values: Dict[str, Any] = {}
        self.seen: Set[str] = set()

    def add(self, name: str) -> None:
        if name in self.seen or name not in self.names:
            return
        self.seen.add(name)
        value = self.names[name]
        if isinstance(value, types.ModuleType):
            self.imports[name] = value.__name__
        elif isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
            self._define(name, value)
        else:
            self.values[name] = value
            kind = type(value)
            if kind.__module__ == "__main__":
                self.add(kind.__name__)

    def _define(self, name: str, value: Any) -> None:
        own = getattr(value, "__name__", name)
        source = self.sources.get(name) or self.sources.get(own)
        if source is None or getattr(value, "__closure__", None) and "\n@" not in "\n" + source:
            raise RuntimeError(
                "tune: %r was not written at the top of a cell, so no other process can have it: "
                "define it there, not inside of another function" % name
            )
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                self.add(node.id)
        self.defined.append(source)
        if name != own:
            self.defined.append("%s = %s" % (name, own))


def _pickled(values: Dict[str, Any]) -> Dict[str, bytes]:
    out = {}
    for name, value in values.items():
        try:
            out[name] = pickle.dumps(value)
        except Exception as error:
            raise RuntimeError(
                "tune: the training uses %r, which cannot be handed to another process (%s): "
                "create it inside of the training function" % (name, error)
            ) from None
    return out


def _asked(study: Any) -> Tuple[Dict[str, Any], str]:
    """The study without its function, and the function's name."""
    target = study.trainable.trainable
    asked = {
        "config": study.config,
        "parameters": study.trainable.parameters,
        "metric": study.metric,
        "mode": study.mode,
        "keep": study.keep,
        "failure": study.failure,
        "search": Proposed() if study.search.searcher is not None else study.search,
        "restore": study.restore,
    }
    return asked, getattr(target, "__name__", "")


class Proposed:
    """Stands in a trial for a search object, which stays with the notebook."""

    searcher = object()
    concurrent = seed = None


def _plain_train() -> Any:
    from .study import Study

    return Study._train


def command(study: Any, folder: str) -> List[str]:
    """Writes the program of the study's trials and gives the command that starts it."""
    running = shell()
    if running is None:
        raise RuntimeError(
            "memroom.tune starts your script again for each trial, and here is no script: "
            "save the program to a file and run that, or use a notebook"
        )
    if study._train.__func__ is not _plain_train():
        raise RuntimeError(
            "memroom.tune runs functions of a notebook with tune.run and Tuner; for another search "
            "save the program to a file and run that"
        )
    names = running.user_ns
    gathered = _Gathered(names, _definitions(list(names.get("In", [])), running.transform_cell))
    asked, name = _asked(study)
    target = study.trainable.trainable
    if target.__module__ == "__main__":
        known = [n for n in (name, *names) if names.get(n) is target]
        if not known:
            raise RuntimeError("tune: give the training function a name at the top of a cell")
        name = known[0]
        gathered.add(name)
    else:
        gathered.values[name] = target
    for value in _objects(asked):
        kind = value if isinstance(value, (type, types.FunctionType)) else type(value)
        if kind.__module__ == "__main__":
            gathered.add(kind.__name__)
    data = os.path.join(folder, "notebook.pickle")
    with open(data, "wb") as file:
        pickle.dump((_pickled({"its settings": asked}), _pickled(gathered.values)), file)
    path = os.path.join(folder, "notebook.py")
    with open(path, "w") as file:
        file.write(_program(gathered, data, name))
    return [sys.executable, path]


def _objects(value: Any) -> List[Any]:
    """Every object inside of settings, values of choices included."""
    inner: List[Any] = []
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, (list, tuple)):
        inner = list(value)
    elif isinstance(getattr(value, "values", None), list):
        inner = value.values
    return [value] + [o for v in inner for o in _objects(v)]


def _program(gathered: _Gathered, data: str, name: str) -> str:
    lines = [
        "import importlib, pickle, sys",
        "sys.path[:] = %r" % sys.path,
    ]
    for alias, module in sorted(gathered.imports.items()):
        lines.append("%s = importlib.import_module(%r)" % (alias, module))
    # Definitions may need values, for defaults, and values of the notebook's classes need those.
    lines += [
        "from memroom.tune.notebook import restore as _memroom_restore, train as _memroom_train",
        "with open(%r, 'rb') as file:" % data,
        "    _memroom_asked, _memroom_values = pickle.load(file)",
        "_memroom_restore(_memroom_values, globals(), False)",
    ]
    lines += gathered.defined
    lines += [
        "_memroom_restore(_memroom_values, globals(), True)",
        "_memroom_train(%s, pickle.loads(_memroom_asked['its settings']))" % name,
    ]
    return "\n".join(lines) + "\n"


def restore(values: Dict[str, bytes], names: Dict[str, Any], all_defined: bool) -> None:
    """Unpickles values; those whose class is not defined yet wait for the second call."""
    for name in list(values):
        try:
            names[name] = pickle.loads(values[name])  # noqa: S301  our own file
            del values[name]
        except AttributeError:
            if all_defined:
                raise


def train(target: Any, asked: Dict[str, Any]) -> None:
    """The end of a trial's program: trains with the trial's settings."""
    import json

    from .study import Study
    from .trainable import with_parameters

    trainable = with_parameters(target, **asked["parameters"])
    study = Study(trainable, asked["config"], 1, asked["metric"], asked["mode"])
    study.configure(checkpoint_config=asked["keep"], failure_config=asked["failure"])
    study.search, study.restore = asked["search"], asked["restore"]
    study._train(json.loads(os.environ["MEMROOM_PARAMS"]))


def run(words: List[str], held: List[int]) -> int:
    """Runs a command, which inherits descriptors, and shows what it prints below the cell."""
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=held,
    ) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.terminate()  # its trials end with it and can be resumed
            process.wait()
            raise
    return process.returncode
