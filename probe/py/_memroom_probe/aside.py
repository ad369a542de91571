"""How the probe comes in and makes itself invisible.

The probe's folder is first on PYTHONPATH of the job. Python imports `sitecustomize` once at
start-up and finds ours. It starts the probe, takes its folder off sys.path and runs the
sitecustomize that Python would have found without us, in its own place. If there is none, the
import fails with the error that `site` expects and passes over.
"""

from __future__ import annotations

import os
import sys


def start() -> None:
    """Starts the probe if the environment asks for it."""
    environ = os.environ
    if environ.get("MEMROOM_OFF") == "1":
        return
    if "MEMROOM_PROBE" in environ or "MEMROOM_APPLY" in environ or "MEMROOM_REHEARSE" in environ:
        import _memroom_probe

        _memroom_probe.start()


def step_aside(ours: str) -> None:
    """Runs the next sitecustomize in the place of ours, whose path is given."""
    here = os.path.dirname(ours)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec("sitecustomize", None) if find_spec else None
        if spec is None or spec.loader is None:
            continue
        from _frozen_importlib import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
        return
    # What `import sitecustomize` says where there is none; `site` passes over exactly this.
    raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
