"""Starts memroom's probe in every Python of a watched job, then steps aside.

This folder is first on PYTHONPATH of the job. Python imports `sitecustomize` once at start-up; it finds ours, which
starts the probe, takes its folder off sys.path and runs the sitecustomize that Python would have found without us, as
this very module. If there is none, the import fails with the error that `site` expects and passes over.
"""


def _start():
    """Starts the probe; nothing it does wrong may reach the user."""
    import os

    if os.environ.get("MEMROOM_OFF") == "1":
        return
    if not any(name in os.environ for name in ("MEMROOM_PROBE", "MEMROOM_APPLY", "MEMROOM_REHEARSE")):
        return
    try:
        import _memroom_probe

        _memroom_probe.start()
    except Exception:
        if os.environ.get("MEMROOM_DEBUG") == "1":
            raise


def _step_aside():
    """Takes our folder off sys.path and runs the next sitecustomize in our place."""
    import sys

    here = __file__.rpartition("/")[0]
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


_start()
_step_aside()
