"""Remedies of the environment: allocator settings and the like, set before the framework that reads
them is loaded.

An allocator key that a torch version does not know kills the job at import, so the version is read
from the torch that is about to be loaded (its version.py, without running it) and unknown keys are
declined. Settings of the user win.
"""

from __future__ import annotations

import os

from . import imports

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: importing typing takes a while
    from typing import Any, Callable, Mapping

    Say = Callable[..., object]  # (kind, text, id=remedy, ...)
    Pair = tuple[str, str, str]  # remedy, allocator key, value
    Version = tuple[int, int]

# Allocator keys and the first torch release that knows them (c10/cuda/CUDAAllocatorConfig.cpp,
# release tags).
_SINCE = {
    "max_split_size_mb": (1, 10),
    "roundup_power2_divisions": (1, 12),
    "garbage_collection_threshold": (1, 12),
    "backend": (2, 0),
    "expandable_segments": (2, 1),
    "release_lock_on_cudamalloc": (2, 2),
    "pinned_use_cuda_host_register": (2, 2),
    "pinned_num_register_threads": (2, 2),
    "max_non_split_rounding_mb": (2, 6),
    "pinned_use_background_threads": (2, 6),
    "per_process_memory_fraction": (2, 10),
    "pinned_reserve_segment_size_mb": (2, 10),
    "large_segment_size_mb": (2, 11),
}

# Remedy -> the allocator key it sets, the parameter it reads and its default.
_ALLOCATOR = {
    "expandable_segments": ("expandable_segments", "enabled", "True"),
    "max_split_size": ("max_split_size_mb", "mb", 128),
    "roundup": ("roundup_power2_divisions", "divisions", 4),
    "gc_threshold": ("garbage_collection_threshold", "threshold", 0.8),
}

# Remedy -> the module that reads the variable, the variable, the parameter and its default.
_VARIABLES = {
    "tf_growth": ("tensorflow", "TF_FORCE_GPU_ALLOW_GROWTH", "value", "true"),
    "tf_allocator": ("tensorflow", "TF_GPU_ALLOCATOR", "value", "cuda_malloc_async"),
    "jax_preallocate": ("jax", "XLA_PYTHON_CLIENT_PREALLOCATE", "value", "false"),
    "jax_fraction": ("jax", "XLA_PYTHON_CLIENT_MEM_FRACTION", "value", "0.75"),
}

# Device bytes, with the CUDA context, up to which work spaces of cuBLAS are a large share of what
# there is: 32 MiB for each of its two parts on a Hopper card. These are the sizes of older cards.
_SMALL = 1200 << 20
_WORK_SPACES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8", "CUBLASLT_WORKSPACE_SIZE": "4096"}


def install(remedies: list[dict[Any, Any]], say: Say) -> None:
    """Arranges that each remedy is in force when its framework is loaded, or says why not."""
    if 0 < int(os.environ.get("MEMROOM_GPU_MEM") or 0) <= _SMALL:
        _spare_work_spaces(say)
    pairs = []
    for remedy in remedies:
        name, params = remedy.get("id"), remedy.get("params") or {}
        if name in _ALLOCATOR:
            key, param, default = _ALLOCATOR[name]
            pairs.append((name, key, _text(params.get(param, default))))
        elif name in _VARIABLES:
            _set_variable(name, params, say)
        else:
            say(
                "declined",
                "%s is not a remedy of the environment that this version knows" % name,
                id=name,
            )
    if pairs and not imports.before_import("torch", lambda spec: _set_allocator(spec, pairs, say)):
        say("declined", "torch is already loaded: allocator settings come too late", id=pairs[0][0])


def _spare_work_spaces(say: Say) -> None:
    if _WORK_SPACES.keys() & os.environ.keys():
        return
    os.environ.update(_WORK_SPACES)
    words = " ".join("%s=%s" % pair for pair in _WORK_SPACES.items())
    rounds = "full precision, about 1e-6 (cuBLAS has smaller work spaces: %s)" % words
    say("applied", words, id="expandable_segments", rounds=rounds)


def _text(value: object) -> str:
    return str(value) if not isinstance(value, bool) else ("True" if value else "False")


def _set_variable(name: str, params: dict[Any, Any], say: Say) -> None:
    module, variable, param, default = _VARIABLES[name]
    if variable in os.environ:
        say("declined", "%s is already set by the user" % variable, id=name)
        return
    os.environ[variable] = _text(params.get(param, default))
    say("applied", "%s=%s" % (variable, os.environ[variable]), id=name)


def _set_allocator(spec: Any, pairs: list[Pair], say: Say) -> None:
    version, hip = torch_version(spec)
    if version is None:
        say(
            "declined",
            "the version of torch cannot be read: an unknown allocator key would end the job",
            id=pairs[0][0],
        )
        return
    variable = allocator_variable(version, hip, os.environ)
    users = os.environ.get(variable, "")
    merged, refused = merge(users, pairs, version)
    for name, why in refused:
        say("declined", why, id=name)
    if merged != users:
        os.environ[variable] = merged
        done = [name for name, _, _ in pairs if name not in dict(refused)]
        say("applied", "%s=%s" % (variable, merged), id=",".join(done))


def allocator_variable(version: Version, hip: bool, environ: Mapping[str, str]) -> str:
    """The variable the device allocator of this torch reads. Since 2.10 the first one that is set
    wins, old names first.
    """
    native = "PYTORCH_HIP_ALLOC_CONF" if hip else "PYTORCH_CUDA_ALLOC_CONF"
    if version < (2, 10):
        return native
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if name in environ:
            return name
    return "PYTORCH_ALLOC_CONF"


def merge(users: str, pairs: list[Pair], version: Version) -> tuple[str, list[tuple[str, str]]]:
    """The user's settings with ours added, and (remedy, reason) for each that was left out."""
    taken, parts, refused = keys(users), [users.strip(" ,")] if users.strip(" ,") else [], []
    for name, key, value in pairs:
        if key in taken:
            refused.append((name, "%s is already set by the user" % key))
        elif version < _SINCE[key]:
            refused.append(
                (
                    name,
                    "torch %d.%d does not know %s (since %d.%d)" % (version + (key,) + _SINCE[key]),
                )
            )
        elif key == "expandable_segments" and "cudaMallocAsync" in users:
            refused.append((name, "the user's backend cudaMallocAsync has no segments"))
        else:
            parts.append("%s:%s" % (key, value))
            taken.add(key)
    return ",".join(parts), refused


def keys(conf: str) -> set[str]:
    """The keys of an allocator string. Lists in brackets hold colons and commas of their own."""
    found, depth, word, after_colon = set(), 0, "", False
    for letter in conf + ",":
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif depth == 0 and letter == ":":
            found.add(word.strip())
            after_colon = True
        elif depth == 0 and letter == ",":
            word, after_colon = "", False
        elif not after_colon:
            word += letter
    return found


def torch_version(spec: Any) -> tuple[Version | None, bool]:
    """((major, minor), is ROCm) of the torch a spec would load, or (None, False)."""
    import ast

    for folder in spec.submodule_search_locations or ():
        try:
            with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            continue
        values = {}
        for node in tree.body:
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                value = getattr(node, "value", None)
                if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                    values[target.id] = value.value
        return _numbers(str(values.get("__version__") or "")), bool(values.get("hip"))
    return _numbers(_metadata_version()), False


def _numbers(version: str | None) -> Version | None:
    import re

    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match.group(1)), int(match.group(2))) if match else None


def _metadata_version() -> str | None:
    from importlib import metadata

    try:
        return metadata.version("torch")
    except Exception:
        return None
