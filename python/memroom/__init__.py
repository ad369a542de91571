"""memroom from inside a program: tell the run it is part of what it cannot see.

Under `memroom run` every Python already carries the probe; these calls add to what it tells.
Without memroom they do nothing, so a script that uses them runs anywhere.

    import memroom

    memroom.report(step=step, loss=loss.item())
    with memroom.phase("eval"):
        ...

One call works everywhere, with or without a run: data that worker processes share instead of
copying.

    samples = memroom.share(samples)

What training needs of a card, without one:

    print(memroom.estimate(model, sample, optimizer="AdamW", gpu="24GiB"))
    with memroom.rehearse(gpu="24GiB") as r:
        train()
    print(r.peak)

In a notebook, without a run around it (`%load_ext memroom` does the same):

    memroom.watch()   # findings below the cells, what a failed cell still holds
    memroom.free()    # lets go of that
"""

import contextlib
from typing import Any, Dict, Iterator, List, Optional

from .fitting import find_executable_batch_size, fit

try:  # written when the wheel is built
    from ._version import __version__
except ImportError:
    __version__ = "0+source"

__all__ = [
    "FeedError",  # noqa: F822  by __getattr__
    "Stream",  # noqa: F822
    "__version__",
    "Estimate",  # noqa: F822  by __getattr__
    "RehearsalError",  # noqa: F822
    "active",
    "estimate",  # noqa: F822  by __getattr__
    "find_executable_batch_size",
    "mix",  # noqa: F822  by __getattr__
    "fit",
    "log_to",  # noqa: F822  by __getattr__
    "phase",
    "rehearse",  # noqa: F822  by __getattr__
    "report",
    "share",  # noqa: F822  by __getattr__
    "findings",  # noqa: F822  by __getattr__
    "free",  # noqa: F822  by __getattr__
    "held",  # noqa: F822  by __getattr__
    "unwatch",  # noqa: F822  by __getattr__
    "watch",  # noqa: F822  by __getattr__
]


def __getattr__(name: str) -> Any:
    """Parts that are loaded when they are first used: most programs need none of them."""
    if name == "share":
        from .sharing import share

        return share
    if name in ("findings", "free", "held", "unwatch", "watch"):
        from . import notebook

        return getattr(notebook, name)
    if name in ("Estimate", "RehearsalError", "estimate", "rehearse"):
        from . import estimating

        return getattr(estimating, name)
    if name == "log_to":
        from .exporting import log_to

        return log_to
    if name == "mix":
        from .mixing import mix

        return mix
    if name in ("Stream", "FeedError"):
        from . import streaming

        return getattr(streaming, name)
    raise AttributeError("module 'memroom' has no attribute %r" % name)


def __dir__() -> List[str]:
    """What there is, also before it is loaded: completion in a notebook asks for it."""
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext memroom` in a notebook."""
    from . import notebook

    notebook.watch()


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext memroom`."""
    from . import notebook

    notebook.detach()
    notebook.unwatch()


def active() -> bool:
    """Returns whether this process is watched by a memroom run."""
    link = _link()
    return link is not None and link.enabled()


def report(step: Optional[int] = None, **values: Any) -> bool:
    """Records numbers with the run, such as a loss. Returns False where nobody listens. Values that
    are not numbers raise.
    """
    return _report(step, {name: float(value) for name, value in values.items()})


def _report(step: Optional[int], numbers: Dict[str, float]) -> bool:
    """The same with names as they are: a value may be called step."""
    if not active():
        return False
    from _memroom_probe.watch.watched import watched

    answer: bool = _link().send(
        "report", {"step": int(step) if step is not None else watched.loop.step, "values": numbers}
    )
    return answer


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Marks a stretch of the program, so that a peak inside it is named after it."""
    if not active():
        yield
        return
    from _memroom_probe.watch.watched import watched

    loop = watched.loop
    before, loop.phase = loop.phase, str(name)
    loop.mark(str(name), True)
    try:
        yield
    finally:
        loop.phase = before
        loop.mark(str(name), False)


def _link() -> Any:
    """The probe's link, if the probe is in this process."""
    import sys

    return sys.modules.get("_memroom_probe.link")
