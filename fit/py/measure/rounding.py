"""By how much results are rounded otherwise: a gradient of a few rows in two halves against that of
the rows together, or by other algorithms than cuDNN's against cuDNN's.

It is told where a training amplifies rounding. The figure is that of one gradient, not of what
becomes of it in many steps.
"""

import contextlib
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.overrides import TorchFunctionMode

from ..batch.inputs import is_tensor
from ..batch.without_dropout import without_dropout
from ..calls import generators, tree
from .run import put_back

FEW = 8  # rows

# Functions that pick among values: a rounding error can change what they pick.
PICKS = {"topk", "sort", "argsort", "argmax", "argmin", "kthvalue", "msort"}


def words(size: Optional[float]) -> str:
    """What is told beside the reason."""
    return (
        "; in a trial one gradient differed by %.1e of its size, and nothing bounds what many "
        "steps make of that" % size
        if size
        else ""
    )


def of_pieces(module: Any, call: Any, inputs: Any) -> Optional[float]:
    """Of the gradient's norm, what halves of a few rows differ by; None where it cannot be had."""
    half = min(FEW, inputs.rows) // 2

    def halves() -> Any:
        first = _gradients(module, call, inputs, range(half))
        second = _gradients(module, call, inputs, range(half, 2 * half))
        return [a + b for a, b in zip(first, second)]

    def whole() -> Any:
        return _gradients(module, call, inputs, range(2 * half))

    return _compare(module, whole, halves) if half else None


def of_algorithms(module: Any, call: Any, inputs: Any) -> Optional[float]:
    """The same for algorithms that want no work space of cuDNN's."""

    def run() -> Any:
        return _gradients(module, call, inputs, range(min(FEW, inputs.rows)))

    def without() -> Any:
        with torch.backends.cudnn.flags(enabled=False):
            return run()

    return _compare(module, run, without)


def picks(module: torch.nn.Module, call: Callable[..., Any], inputs: Any) -> str:
    """The function by which a module picks among its own results, as a router picks experts and a
    quantizer codes; "" where it picks nothing, or cannot be watched.
    """
    args, kwargs = inputs.pick(list(range(min(2, inputs.rows))))
    watch = _Picks((args, kwargs))
    try:
        with put_back(module), torch.no_grad(), watch:
            call(*args, **kwargs)
    except Exception as why:  # out of memory too
        del why
    return watch.found


class _Picks(TorchFunctionMode):
    """Notes the first pick among values that the module has computed. given: its arguments, which
    are the same however it is run.
    """

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.found, self._given = "", tree.storages(given)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in PICKS and not self.found:
            values: Any = args[0] if args else (kwargs or {}).get("input")
            if is_tensor(values) and values.is_floating_point() and not self._is_given(values):
                self.found = name
        return func(*args, **(kwargs or {}))

    def _is_given(self, values: Any) -> bool:
        return values.untyped_storage().data_ptr() in self._given


def _compare(module: torch.nn.Module, one: Any, other: Any) -> Optional[float]:
    try:
        with put_back(module):
            states = generators.read(module)
            a = one()
            generators.put_back(states)
            b = other()
        size = _norm(a)
        # a loss over a batch is a sum or a mean of those over its halves
        apart = min(_norm([x - s * y for x, y in zip(a, b)]) for s in (1.0, 0.5))
    except Exception as why:  # out of memory too: then there is no figure
        del why
        return None
    return apart / size if size else None


def _norm(gradients: List[torch.Tensor]) -> float:
    answer: float = float(sum(g.double().square().sum() for g in gradients)) ** 0.5
    return answer


def _gradients(
    module: torch.nn.Module, call: Callable[..., Any], inputs: Any, rows: Any
) -> List[torch.Tensor]:
    args, kwargs = inputs.pick(list(rows))
    alone = getattr(module, "no_sync", contextlib.nullcontext)  # other ranks know nothing of this
    parameters = [p for p in module.parameters() if p.requires_grad]
    with without_dropout(set()), torch.enable_grad(), alone():  # halves would draw other masks
        results = tree.flatten(call(*args, **kwargs))[0]
        targets = [t for t in results if is_tensor(t) and t.requires_grad]
        got = torch.autograd.grad(
            [t.float().square().sum() if t.dim() else t for t in targets],
            parameters,
            allow_unused=True,
        )
    return [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(parameters, got)]
