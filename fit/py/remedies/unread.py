"""Results of a call in pieces that nobody may ever read: logits beside a loss.

They are not put together when the call is made. What the loop is given in their place has their
shape and no memory, and is computed by running the pieces once more when somebody reads it. Weights
must be those of the call: what is still there when an optimizer steps is computed before that,
unless the line that made the call shows that nobody can read it.
"""

import ast
import functools
import itertools
import linecache
import math
import os
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ..calls import outermost

APART = 1e-2  # of the loss: a second run that gives another one did not run with the same weights
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")


class Changed(RuntimeError):
    """What is read cannot be computed any longer."""


class Source:
    """A result of one call. compute(): runs the pieces again, and returns the result and the loss;
    loss: that of the call; read(): tells that somebody reads it; gone: it must not be read once
    weights have changed.
    """

    def __init__(
        self,
        compute: Callable[[], Tuple[torch.Tensor, torch.Tensor]],
        loss: torch.Tensor,
        read: Callable[[], None],
        may_read: bool,
    ) -> None:
        self._compute: Optional[Callable[[], Tuple[torch.Tensor, torch.Tensor]]] = compute
        self._loss, self._read, self.may_read = loss, read, may_read
        self._value: Optional[torch.Tensor] = None
        _waiting.add(self)
        _listen()

    def value(self) -> torch.Tensor:
        if self._value is None:
            if self._compute is None:
                raise Changed("a result of the model is read after its weights have changed")
            self._read()
            value, loss = self._compute()
            before, now = float(self._loss), float(loss)
            if math.isfinite(before) and not abs(now - before) <= APART * max(abs(before), 1e-6):
                raise Changed("a result of the model is read, and its weights are others by now")
            self._value = value
            self._done()
        return self._value

    def weights_change(self) -> None:
        if self.may_read:
            self.value()
        self._done()

    def _done(self) -> None:
        self._compute = None
        _waiting.discard(self)


class Unread(torch.Tensor):
    """A tensor whose content is a Source's."""

    source: Source

    @staticmethod
    def __new__(cls, source: Source, like: torch.Tensor, shape: Sequence[int]) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=like.dtype, device=like.device
        )
        made.source = source
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        if not _tells_only(func):  # computed here: further down autograd and autocast are off
            for read in torch.utils._pytree.tree_flatten((args, kwargs))[0]:
                if isinstance(read, Unread):
                    read.source.value()
        if func in _READ_MEMORY:
            args = tuple(_with_memory(a) for a in args)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Unread(args[0].source, args[0], args[0].shape)
        read = functools.partial(torch.utils._pytree.tree_map_only, Unread, _value)
        return func(*read(args), **read(kwargs or {}))


# What can be asked of a tensor without its content.
_TELLS = set(
    """shape dtype device layout requires_grad grad_fn grad is_leaf ndim output_nr size dim numel
    is_sparse is_sparse_csr is_quantized is_nested is_meta is_cuda is_cpu is_mps is_xpu is_inference
    element_size is_floating_point is_complex is_contiguous stride storage_offset get_device detach
    register_hook requires_grad_ retain_grad untyped_storage is_conj is_neg _is_view _is_zerotensor
    nelement _version __hash__ __len__""".split()
)


def _tells_only(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        name = getattr(func.__self__, "__name__", "")
    return name in _TELLS


_DATA: Any = torch.Tensor.data.__get__
_READ_MEMORY = {
    getattr(torch.Tensor, name)
    for name in (
        "numpy",
        "tolist",
        "data_ptr",
        "share_memory_",
        "pin_memory",
        "__array__",
        "__deepcopy__",
        "__dlpack__",
        "__reduce_ex__",
        "__repr__",
    )
} | {_DATA}


def _value(tensor: Unread) -> torch.Tensor:
    return tensor.source.value()


def _with_memory(argument: Any) -> Any:
    if not isinstance(argument, Unread):
        return argument
    value = _value(argument)
    return value.clone().requires_grad_() if argument.requires_grad else value


def is_unread(value: Any) -> bool:
    """Whether it has no memory yet."""
    return isinstance(value, Unread) and value.source._value is None


_waiting: "weakref.WeakSet[Source]" = weakref.WeakSet()
_listens: List[Any] = []


def _listen() -> None:
    if not _listens:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        _listens.append(register_optimizer_step_pre_hook(_weights_change))
        outermost.when_forgotten(_forget)


def _weights_change(*_: Any) -> None:
    for source in list(_waiting):
        source.weights_change()


def _forget() -> None:
    for hook in _listens:
        hook.remove()
    _listens.clear()
    _waiting.clear()


# --- what the script can read


def may_be_read(path: str) -> bool:
    """Whether the line that called the model lets anybody read this part of its result: false
    where the result is given a name that is never used again for it. path: as of calls.tree.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_HERE, _TORCH)):
        frame = frame.f_back
    if frame is None:
        return True
    code = frame.f_code
    if not hasattr(code, "co_positions"):  # before Python 3.11
        return True
    where = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
    return _may_be_read(code.co_filename, where, path)


@functools.lru_cache(maxsize=64)
def _may_be_read(file: str, where: Tuple[int, int, int, int], path: str) -> bool:
    """where: of the call in the file: first and last line, first and last column."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return True
    around = [n for n in ast.walk(tree) if _spans(n, where[0])]
    places = [n for n in around if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    place: Any = places[-1] if places else tree
    given = [n for n in around if isinstance(n, ast.Assign) and _is_at(n.value, where)]
    if not given or len(given[-1].targets) != 1:
        return True
    target = given[-1].targets[0]
    if isinstance(target, (ast.Tuple, ast.List)):
        if not path.isdigit() or int(path) >= len(target.elts):
            return True
        target, path = target.elts[int(path)], ""
    return not isinstance(target, ast.Name) or _is_read(place, target.id, path)


def _spans(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _is_at(node: ast.expr, where: Tuple[int, int, int, int]) -> bool:
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == where


def _is_read(place: ast.AST, name: str, path: str) -> bool:
    """Whether a name is used for anything but other parts of what it stands for. Functions inside
    that have a name of their own like it mean another thing.
    """
    for child in ast.iter_child_nodes(place):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            names = {n.id for n in ast.walk(child) if isinstance(n, ast.Name) and _is_stored(n)}
            names |= {n.arg for n in ast.walk(child) if isinstance(n, ast.arg)}
            if name in names:
                continue
        if path and isinstance(child, (ast.Attribute, ast.Subscript)):
            other = child.attr if isinstance(child, ast.Attribute) else _constant(child.slice)
            if _is_named(child.value, name) and other not in (None, path):
                continue
        if isinstance(child, ast.Name) and child.id == name and not _is_stored(child):
            return True
        if isinstance(child, ast.Constant) and child.value == name:
            return True
        if _is_read(child, name, path):
            return True
    return False


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, (ast.Store, ast.Del))


def _constant(node: ast.AST) -> Optional[str]:
    """A key; places in a tuple or a dict of outputs leave out what is None, so only 0 is sure."""
    value = getattr(node, "value", None)
    return value if isinstance(value, str) else "0" if value == 0 else None
