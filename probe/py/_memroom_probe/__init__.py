"""memroom's probe: the part of memroom that lives in the user's process.

It imports only the standard library and the framework the user imported, keeps no thread, never initialises a GPU,
lets no exception escape and drops its messages rather than wait. `start` is called by sitecustomize, or by the pip
package `memroom`. In order of reading: imports (waits for torch, tensorflow, jax), link (the socket), wire (the
messages), guard (what hooks cost and what they may not do), then one module for each framework.
"""

_started = False


def start():
    """Connects to the monitor if there is one and waits for frameworks. A second call does nothing."""
    global _started
    if _started:
        return
    _started = True
    import os

    from . import imports

    environ = os.environ
    if "MEMROOM_PROBE" in environ:
        from . import link

        link.open(environ["MEMROOM_PROBE"])
    if "MEMROOM_REHEARSE" in environ or "MEMROOM_APPLY" in environ:
        from . import entries

        entries.enter(environ)
    if "MEMROOM_PROBE" in environ or "MEMROOM_GPU_MEM" in environ:
        imports.when_imported("torch", _watch_torch)
        imports.when_imported("tensorflow", _watch_tensorflow)
        imports.when_imported("jax", _watch_jax)


def _watch_torch(torch):
    from .watch import pytorch

    pytorch.install(torch)


def _watch_tensorflow(tensorflow):
    from .watch import tensorflow as part

    part.install(tensorflow)


def _watch_jax(jax):
    from .watch import jax as part

    part.install(jax)
