"""Trials that do not run the user's program again: those of a notebook, which is no script that
could be started again, and those of a script whose with_parameters holds data, which must not be
loaded once more for each of them.

The training function is written to a file with what it uses: functions and classes of the notebook
or script by their source, as the cells that were run last define them, modules by their names,
everything else by value. What with_parameters holds is written once into memory that all trials
map: the contents of arrays, frames and tensors, and what memroom.share made.
"""

import __future__

import ast
import functools
import io
import os
import pickle
import runpy
import subprocess
import symtable
import sys
import types
from typing import Any, Dict, List, Optional, Set, Tuple

from .. import encoding, segment, sharing

LARGE = 1 << 20  # bytes of parameters from which a script is not run again
AGAIN = "memroom.tune.detached"  # this module, as a program that starts a trial of a script


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


def _globals(table: symtable.SymbolTable) -> Set[str]:
    """The names that a source takes from around it; local ones may have the same names."""
    top = table.get_type() == "module"
    found = {
        s.get_name() for s in table.get_symbols() if s.is_global() or top and s.is_referenced()
    }
    return found.union(*(_globals(inner) for inner in table.get_children()))


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

    def _define(self, name: str, value: Any) -> None:
        own = getattr(value, "__name__", name)
        source = self.sources.get(name) or self.sources.get(own)
        if source is None or getattr(value, "__closure__", None) and "\n@" not in "\n" + source:
            raise RuntimeError(
                "tune: %r was not written at the top of a cell or script, so no other process "
                "can have it: define it there, not inside of another function" % name
            )
        for used in sorted(_globals(symtable.symtable(source, name, "exec"))):
            self.add(used)
        self.defined.append(source)
        if name != own:
            self.defined.append("%s = %s" % (name, own))


class _Pickler(pickle.Pickler):
    """Notes the classes and functions that it meets: the trial must have them too."""

    def __init__(self, file: Any, met: Set[Any]) -> None:
        super().__init__(file)
        self.met = met

    def reducer_override(self, thing: Any) -> Any:
        self.met.add(encoding.kind_of(thing))
        return NotImplemented


def _pickled(values: Dict[str, Any], met: Set[Any]) -> Dict[str, bytes]:
    out = {}
    for name, value in values.items():
        file = io.BytesIO()
        try:
            _Pickler(file, met).dump(value)
        except Exception as error:
            raise RuntimeError(
                "tune: the training uses %r, which cannot be handed to another process (%s): "
                "create it inside of the training function" % (name, error)
            ) from None
        out[name] = file.getvalue()
    return out


def _asked(study: Any) -> Dict[str, Any]:
    """The study without its function and what that is handed."""
    return {
        "config": study.config,
        "resources": study.resources,
        "every": study.every,
        "metric": study.metric,
        "mode": study.mode,
        "keep": study.keep,
        "failure": study.failure,
        "search": Proposed() if study.search.searcher is not None else study.search,
        "restore": study.restore,
    }


class Proposed:
    """Stands in a trial for a search object, which stays with the notebook."""

    searcher = object()
    concurrent = seed = None


def _plain_train() -> Any:
    from .study import Study

    return Study._train


def of_notebook(study: Any, folder: str) -> List[str]:
    """Writes the program of the study's trials and returns the command that starts it."""
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
    sources = _definitions(list(names.get("In", [])), running.transform_cell)
    return [sys.executable, _written(study, folder, _Gathered(names, sources))]


def of_script(study: Any, folder: str, words: List[str]) -> Optional[List[str]]:
    """As of_notebook, for a script whose parameters are large; None: it is run again, by words.
    The command does so too where the data has gone, with the program that holds it.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    parameters = study.trainable.parameters
    if path is None or not parameters or study._train.__func__ is not _plain_train():
        return None
    shared = Shared(parameters)
    if not shared.large and not any(map(sharing.is_shared, parameters.values())):
        return None
    with open(path) as file:
        sources = _definitions([file.read()], str)
    names = dict(vars(main), __file__=os.path.abspath(path))
    written = _written(study, folder, _Gathered(names, sources), shared)
    place = "/proc/%d/fd/%d" % (os.getpid(), shared.block.descriptor)
    return [sys.executable, "-m", AGAIN, written, place] + words


class Shared:
    """What with_parameters holds, in memory that trials map as long as this object lives."""

    def __init__(self, parameters: Dict[str, Any]) -> None:
        self.met: Set[Any] = set()
        writer = segment.Writer(None)
        try:
            self.root = encoding.write_values(writer, parameters, self.met)
            self.block = writer.finish(0)
        except BaseException:
            writer.abandon()
            raise

    @property
    def large(self) -> bool:
        return self.block.map.size() >= LARGE

    def __reduce__(self) -> Any:
        return _mapped, (self.block.place(), self.root)


def _mapped(handle: Any, root: Tuple[int, int]) -> Any:
    return encoding.decode_buffers(segment.attach(handle), *root)


def _written(study: Any, folder: str, gathered: _Gathered, shared: Any = None) -> str:
    """Writes the program of the study's trials and returns its path."""
    name = _target(gathered, study.trainable.trainable)
    study.shared = shared = shared or Shared(study.trainable.parameters)
    met, values = shared.met, {}  # type: Tuple[Set[Any], Dict[str, bytes]]
    settings = _pickled({"its settings": dict(_asked(study), parameters=shared)}, met)
    new = gathered.values
    while new or met:
        values.update(_pickled(new, met))
        while met:
            kind = met.pop()
            if getattr(kind, "__module__", None) == "__main__":
                gathered.add(kind.__name__)
        new = {n: v for n, v in gathered.values.items() if n not in values}
    data = os.path.join(folder, "trial.pickle")
    with open(data, "wb") as file:
        pickle.dump((settings, values), file)
    path = os.path.join(folder, "trial.py")
    with open(path, "w") as program:
        program.write(_program(gathered, data, name))
    return path


def _target(gathered: _Gathered, target: Any) -> str:
    """Gathers the training function; returns its name in the program."""
    inner = target
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inner.__module__ == "__main__":
        own = getattr(inner, "__name__", "")
        known = [n for n in (own, *gathered.names) if gathered.names.get(n) is inner]
        if not known:
            raise RuntimeError(
                "tune: give the training function a name at the top of a cell or script"
            )
        gathered.add(known[0])
        if inner is target:
            return str(known[0])
    gathered.values["_memroom_target"] = target
    return "_memroom_target"


def _program(gathered: _Gathered, data: str, name: str) -> str:
    later = "annotations" if gathered.names.get("annotations") is __future__.annotations else ""
    lines = [
        "from __future__ import %s" % later if later else "",
        "import importlib, pickle, sys",
        "sys.path[:] = %r" % sys.path,
        "sys.argv[:] = %r" % sys.argv if "__file__" in gathered.names else "",
    ]
    for alias, module in sorted(gathered.imports.items()):
        lines.append("%s = importlib.import_module(%r)" % (alias, module))
    # Definitions may need values, for defaults, and values of the notebook's classes need those.
    lines += [
        "from memroom.tune.detached import restore as _memroom_restore, train as _memroom_train",
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
    study.every, study.resources = asked["every"], asked["resources"]
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


if __name__ == "__main__":
    _, _program_of_trial, _data, *_words = sys.argv
    if os.path.exists(_program_of_trial) and os.path.exists(_data):
        runpy.run_path(_program_of_trial, run_name="__main__")
    else:
        os.execv(sys.executable, [sys.executable] + _words)
