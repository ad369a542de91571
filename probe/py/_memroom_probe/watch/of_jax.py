"""JAX: the version is reported, and an exhausted device is recognised when it ends the process (see
oom). XLA's allocator offers nothing to read at a step without initialising a backend, so the meters
outside do the rest.
"""

from typing import Any

from .. import process


def install(jax: Any) -> None:
    process.remember(
        "jax", "framework", {"name": "jax", "version": str(getattr(jax, "__version__", ""))}
    )
