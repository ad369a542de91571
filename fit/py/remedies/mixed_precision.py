"""Mixed precision: the outermost modules run under autocast, their results come back in the
precision they had.

fp16 needs loss scaling. It is done inside the model: gradients are multiplied where they enter (at
the outputs) and divided where they leave (at the parameters), so the loop sees gradients of the
usual size; a step whose gradients overflowed is left out, as a GradScaler would.
"""

from typing import Any, Callable, Dict, Set, Tuple

import torch

from ..batch.inputs import is_tensor
from ..calls import autocast, outermost, tree


def install(params: Dict[str, Any], say: Callable[..., Any]) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[params.get("dtype", "bf16")]
    if dtype == torch.bfloat16 and torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        dtype = torch.float16
    outermost.handle(Autocast(dtype, say))


class Autocast:
    def __init__(self, dtype: torch.dtype, say: Callable[..., Any]) -> None:
        self.dtype, self.say, self.told = dtype, say, False
        self.scaling = Scaling() if dtype == torch.float16 else None

    def __call__(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        parameter = next(module.parameters(), None)
        if parameter is None or parameter.dtype != torch.float32:
            return call(*args, **kwargs)
        kind = parameter.device.type
        if autocast.is_on_anywhere():
            self._tell("declined", "the script runs under autocast already")
            return call(*args, **kwargs)
        self._tell(
            "applied",
            "%s under autocast in %s" % (type(module).__name__, str(self.dtype).split(".")[1]),
        )
        if self.scaling and torch.is_grad_enabled():
            self.scaling.watch(module)
        with torch.autocast(kind, dtype=self.dtype):
            leaves, rebuild = tree.flatten(call(*args, **kwargs))
        return rebuild([self._back(leaf) for leaf in leaves])

    def _back(self, leaf: Any) -> Any:
        if not is_tensor(leaf) or not leaf.is_floating_point():
            return leaf
        leaf = leaf.float() if leaf.dtype == self.dtype else leaf
        return (
            _ScaleGradient.apply(leaf, self.scaling)
            if self.scaling and leaf.requires_grad
            else leaf
        )

    def _tell(self, kind: Any, text: str) -> None:
        if not self.told:
            self.told = True
            self.say(kind, text, id="mixed_precision", equivalence="changes")


class Scaling:
    """The scale, and the optimizers' steps it may have to skip."""

    def __init__(self, scale: Any = 2.0**13, grow_after: Any = 200) -> None:
        self.scale, self.grow_after, self.good = scale, grow_after, 0
        self.hooked: Set[Any] = set()
        self._guard_steps()

    def watch(self, module: torch.nn.Module) -> None:
        for p in module.parameters():
            if p.requires_grad and id(p) not in self.hooked:
                self.hooked.add(id(p))
                p.register_hook(lambda grad: grad / self.scale)

    def _guard_steps(self) -> None:
        """torch gives every optimizer class's step a profiling wrapper; ours goes around each
        instance's step once.
        """
        original, scaling = torch.optim.Optimizer.__init__, self

        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            original(optimizer, *args, **kwargs)
            step = optimizer.step

            def guarded(*a: Any, **k: Any) -> Any:
                return step(*a, **k) if scaling.finite(optimizer) else None

            optimizer.step = guarded

        torch.optim.Optimizer.__init__ = __init__

    def finite(self, optimizer: Any) -> Any:
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        good = not grads or bool(
            torch.stack([n.isfinite() for n in torch._foreach_norm(grads)]).all()
        )
        self.good = self.good + 1 if good else 0
        if not good:
            self.scale /= 2
        elif self.good == self.grow_after:
            self.scale, self.good = self.scale * 2, 0
        return good


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Any, scaling: Any) -> Any:
        ctx.scaling = scaling
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.scaling.scale, None
