"""TensorFlow takes the whole card.

severity: hint
remedy: tf_growth

By default TensorFlow reserves nearly all GPU memory at start.

Instead: `tf.config.experimental.set_memory_growth(gpu, True)` for each GPU, or
TF_FORCE_GPU_ALLOW_GROWTH=true.
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..names import FUNCTIONS, File, constant, method, walk


def growth(file: File) -> Iterator[Any]:
    """GPUs used, growth nowhere set"""
    if "tensorflow" not in file.modules:
        return
    hint = None
    for node in file.nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in ("TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR")
        ):
            return
        if isinstance(node, ast.Attribute) and node.attr in (
            "allow_growth",
            "per_process_gpu_memory_fraction",
        ):
            return
        if isinstance(node, ast.keyword) and node.arg in (
            "allow_growth",
            "per_process_gpu_memory_fraction",
            "memory_limit",
        ):
            return
        if not isinstance(node, ast.Call):
            continue
        name = file.callee(node) or ""
        if name.split(".")[-1] in (
            "set_memory_growth",
            "set_logical_device_configuration",
            "set_virtual_device_configuration",
        ):
            return
        if (
            name.endswith("list_physical_devices")
            and node.args
            and constant(node.args[0]) == "GPU"
            or name == "tensorflow.device"
            and node.args
            and "GPU" in str(constant(node.args[0], "")).upper()
        ):
            hint = hint or node
    trains = any(
        isinstance(n, ast.Call) and method(n) in ("fit", "apply_gradients", "minimize")
        for n in file.nodes
    )
    if hint is not None and trains and _runs_itself(file, hint):
        yield finding(
            "tf-no-growth",
            hint,
            "TensorFlow takes nearly the whole card at start: nobody else fits beside it, and its own use cannot be seen",
        )


def _runs_itself(file: File, hint: Any) -> bool:
    """Does the file run by itself? The card of a module is set up by whoever imports it."""
    inside = any(
        hint in walk(f) for f in file.tree.body if isinstance(f, FUNCTIONS + (ast.ClassDef,))
    )
    calls = any(
        isinstance(s, (ast.Expr, ast.For, ast.While, ast.With, ast.If))
        and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in file.tree.body
    )
    return calls or not inside


CHECKS = (growth,)
