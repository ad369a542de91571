"""memroom's probe: the part of memroom that lives in the user's process.

It imports only the standard library and the framework the user imported, keeps no thread, never
initialises a GPU, lets no exception escape and drops its messages rather than wait. `start` is
called by sitecustomize, or by the pip package `memroom`. In order of reading: imports (waits for
torch, tensorflow, jax), link (the socket), wire (the messages), guard (what hooks cost and what
they may not do), then one module for each framework.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: nothing is imported for it
    import types

_started = False


def start() -> None:
    """Connects to the monitor if there is one and waits for frameworks. A second call does
    nothing.
    """
    global _started
    if _started:
        return
    _started = True
    import os

    from . import imports

    environ = os.environ
    if "MEMROOM_PROBE" in environ:
        from . import (
            farewell,
            link,
            process,
            where,
        )  # farewell is needed at the end, when nothing should have to be loaded

        try:
            where.prepare()
        except (OSError, ValueError, RuntimeError, ImportError, AttributeError):
            pass  # no such file, signal or module here: nobody will ask
        imports.when_imported("numpy.lib.format", where.of_numpy)
        link.open(environ["MEMROOM_PROBE"], process.greetings, farewell.say)
    if "MEMROOM_REHEARSE" in environ or "MEMROOM_APPLY" in environ:
        from . import entries

        entries.enter(environ)
    if "MEMROOM_PROBE" in environ or "MEMROOM_GPU_MEM" in environ:
        for framework in ("torch", "tensorflow", "jax", "datasets"):
            imports.when_imported(framework, _watch)
    if "MEMROOM_TRIAL" in environ and "MEMROOM_PROBE" in environ:
        from .watch import metrics

        metrics.wait()


def _watch(module: types.ModuleType) -> None:
    """Hooks a framework that the user has just imported."""
    import sys
    from importlib import import_module

    users = sys.dont_write_bytecode
    sys.dont_write_bytecode = False  # as in sitecustomize
    try:
        import_module(__name__ + ".watch.of_" + module.__name__).install(module)
    finally:
        sys.dont_write_bytecode = users
