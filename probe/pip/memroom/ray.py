"""What a script needs of Ray around memroom.tune: `from memroom import ray, tune`.

init and shutdown do nothing here, because memroom.tune starts no cluster; everything else is Ray's
own where Ray is installed.
"""

from typing import Any


def init(*args: Any, **kwargs: Any) -> None:
    """memroom.tune needs no cluster: trials are processes on this machine."""


def shutdown(*args: Any, **kwargs: Any) -> None:
    """There is nothing to shut down."""


def is_initialized() -> bool:
    return True


def __getattr__(name: str) -> Any:
    import importlib

    try:
        return getattr(importlib.import_module("ray"), name)
    except ImportError:
        raise AttributeError("ray.%s needs Ray: pip install 'ray[tune]'" % name) from None
