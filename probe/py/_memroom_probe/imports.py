"""Calls a function before or after a module is imported by the user, without importing it
ourselves.

A finder in front of sys.meta_path answers for the watched names only. It asks the other finders for
the module's spec and gives that very spec back, with exec_module of the loader *instance* replaced
until the module has run: the loader's type, its get_source and the module's __loader__ stay what
they would have been.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: importing typing takes a while
    from typing import Any, Callable

_before: dict[
    Any, Any
] = {}  # module name -> functions of the spec, called before the module's code runs
_after: dict[Any, Any] = {}  # module name -> functions of the module, called after it has run


def when_imported(name: str, fn: Callable[[Any], object]) -> None:
    """Calls fn(module) as soon as `name` has been imported; at once if it already is. A reload
    calls it again.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(
        getattr(module, "__spec__", None), "_initializing", False
    ):
        _call(fn, module)
    _watch(_after, name, fn)


def before_import(name: str, fn: Callable[[Any], object]) -> bool:
    """Calls fn(spec) right before the code of `name` runs. Says False, and never calls it, if that
    has happened.
    """
    if name in sys.modules:
        return False
    _watch(_before, name, fn)
    return True


def _watch(table: dict[Any, Any], name: str, fn: Callable[[Any], object]) -> None:
    table.setdefault(name, []).append(fn)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _call(fn: Callable[[Any], object], argument: object) -> None:
    try:
        fn(argument)
    except Exception as error:
        from . import faults

        faults.note(
            "import of %s" % getattr(argument, "__name__", getattr(argument, "name", "?")), error
        )


class _Finder:
    """Stands first on sys.meta_path; None means "not mine", which is all it says for modules nobody
    waits for.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in _after and fullname not in _before:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(fullname, path, target)
            if spec is not None:
                _wrap(spec)
                return spec
        return None


_IMPORTLIB = "<frozen importlib._bootstrap>"


def _wrap(spec: Any) -> None:
    """Puts our calls around the loader's exec_module. Loaders that are classes (built-in, frozen)
    are left alone.
    """
    loader = spec.loader
    if isinstance(loader, type) or not hasattr(loader, "exec_module"):
        return
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        mine = getattr(getattr(module, "__spec__", None), "name", None) == spec.name
        if mine:
            try:
                del loader.exec_module  # only the instance's attribute, which is ours
            except AttributeError:
                pass
            for fn in _before.get(spec.name, ()):
                _call(fn, module.__spec__)
        run(module)
        if mine:
            module = sys.modules.get(spec.name, module)  # a module may replace itself
            for fn in _after.get(spec.name, ()):
                _call(fn, module)

    # Python leaves the frames of importlib out of a traceback, where nothing else is among them. A
    # module that fails must look as it does without us.
    exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTLIB)
    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader with slots: the module is imported unwatched
        pass


_finder = _Finder()
