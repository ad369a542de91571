"""Finds the memroom command that this package starts."""

import os
import shutil
import sysconfig

MISSING = (
    "memroom: the command is not found: install the wheel with pip, put the binary on PATH, or "
    "name it in MEMROOM_BINARY"
)


def find() -> str:
    """The path of the command: MEMROOM_BINARY, the one installed with this package, or PATH's."""
    installed = os.path.join(sysconfig.get_path("scripts"), "memroom")
    for path in (os.environ.get("MEMROOM_BINARY"), installed, shutil.which("memroom")):
        if path and os.access(path, os.X_OK):
            return path
    raise RuntimeError(MISSING)
