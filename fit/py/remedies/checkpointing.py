"""Activation checkpointing of parts of a model: what lies inside a part is computed again during
backward.

Parts are found by measuring, not by name: modules, or runs of a Sequential's children, that save
more than goes into them, each small enough to be computed again without filling the room it made.
Checkpointing is non-reentrant, random generators and autocast are as they were, and what a call
moves on (running statistics, counters) is moved once, not twice.
"""

import contextlib
import dataclasses
import functools
import importlib
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.utils.checkpoint import checkpoint

from ..batch import draws
from ..batch.inputs import is_tensor
from ..calls import generators, lent, moving, outermost, tree
from ..memory.heap import heap


@dataclasses.dataclass(eq=False)
class Part:
    """Something that can be checkpointed on its own: a module, or some children of a Sequential. It
    does not keep the module alive: a script may train one model after the other.
    """

    name: str
    of: dataclasses.InitVar[torch.nn.Module]
    saved: float = 0  # bytes that its calls keep for backward
    given: float = 0  # bytes that go into it
    begin: Optional[int] = None  # of a Sequential's children, the first
    end: Optional[int] = None  # and the one behind the last
    order: int = 0  # of its first call
    largest: float = 0  # bytes of the largest tensor that they keep

    def __post_init__(self, of: torch.nn.Module) -> None:
        self._module = weakref.ref(of)

    @property
    def module(self) -> Optional[torch.nn.Module]:
        """None once it is gone."""
        return self._module()

    @property
    def gain(self) -> float:
        return self.saved - self.given


class Checkpointing:
    """The parts that are checkpointed; the handler of their calls."""

    def use(self, module: Any, parts: Any) -> None:
        """From now on these parts of the module, and no others of it."""
        outermost.leave_inner(list(module.modules()))
        runs: Dict[Any, Any] = {}
        for part in parts:
            if part.module is None:
                continue
            if outermost.sharded(part.module):
                _below_hooks(part.module)
            elif part.begin is None:
                outermost.handle_inner([part.module], self)
            else:
                runs.setdefault(id(part.module), []).append(part)
        for some in runs.values():
            outermost.handle_inner([some[0].module], _Runs(some))

    def __call__(
        self, block: Any, call: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Any:
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        return checkpointed(call, (args, kwargs), [block])


def _below_hooks(block: Any) -> Any:
    """The forward of a sharded block, without the hooks around it, which gather its parameters:
    the order that FSDP wants. It stays for good: such blocks are chosen once.
    """
    forward = block.forward

    @functools.wraps(forward)
    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpointed(forward, (args, kwargs))

    block.forward = again


def before_compiling(block: Any) -> Any:
    """The block becomes a checkpoint region of the program that torch.compile is about to trace: it
    must find torch's own function, and nothing of ours around it.
    """
    _draw_as_without_regions()
    forward = block.forward

    def region(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    block.forward = region


def _draw_as_without_regions() -> None:
    """For what a region draws on a card, attention that may drop values among it, torch makes
    generators of its own, so that CUDA graphs can be recorded. Their seeds come from the CPU's
    generator at the first call, from which a loop may draw its batches, and what they give is not
    what the card's generator gives. In the older way the first run draws from the card's generator,
    as a program without regions does, and the second run from the state that it had.
    """
    config: Any = importlib.import_module("torch._functorch.config")
    if hasattr(config, "graphsafe_rng_functionalization"):
        config.graphsafe_rng_functionalization = False


class _Runs:
    """A Sequential, some runs of whose children are checkpointed."""

    def __init__(self, parts: Any) -> None:
        self.ends = {part.begin: part.end for part in parts}

    def __call__(
        self,
        sequential: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        if not torch.is_grad_enabled() or len(args) != 1 or kwargs:
            return call(*args, **kwargs)
        children, value, i = list(sequential), args[0], 0
        while i < len(children):
            end = self.ends.get(i)
            if end is None:
                value, i = children[i](value), i + 1
                continue
            run = children[i:end]
            value, i = (
                checkpointed(lambda x, run=run: _in_turn(run, x), ((value,), {}), run),
                end,
            )
        return value


def _in_turn(modules: Any, value: Any) -> Any:
    for m in modules:
        value = m(value)
    return value


def checkpointed(
    call: Callable[..., Any], args_kwargs: Any, modules: Any = (), parameters: Any = None
) -> Any:
    """Runs call under non-reentrant checkpointing. A key-value cache, which a second run would fill
    twice, is left out. modules: that the call runs; what it moves in them (running statistics,
    counters) is moved once. Generators are put back here, because torch does so only for the cards
    that it finds among the arguments. The second run may come
    steps later, when a gradient is differentiated again or a graph is kept: whatever parts are
    chosen by then, it goes by those of the first run. It goes by the parameters of the first run
    too: those that its modules have now, or those that are given.
    """
    leaves, rebuild = tree.flatten(args_kwargs)
    leaves = [None if type(leaf).__name__.endswith("Cache") else leaf for leaf in leaves]
    tensors = list({id(leaf): leaf for leaf in leaves if is_tensor(leaf)}.values())
    # One argument that is given twice must be one in the second run too: attention asks whether its
    # keys are its values.
    at = {id(tensor): i for i, tensor in enumerate(tensors)}
    places = [(i, at[id(leaf)]) for i, leaf in enumerate(leaves) if is_tensor(leaf)]
    for i, _ in places:
        leaves[i] = None  # the graph holds them; a second reference would keep them for longer

    parts, drawing = outermost.inner(), draws.current()

    def run(*given: Any) -> Any:
        filled = list(leaves)
        for i, which in places:
            filled[i] = given[which]
        args, kwargs = rebuild(filled)
        with outermost.inside(parts), draws.again(drawing):
            return call(*args, **kwargs)

    watched = moving.Watched(list(modules))
    parameters = parameters or lent.AsCalled(list(modules))
    second = _Second(_draws(), list(modules), parameters)
    result = checkpoint(
        run,
        *tensors,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (contextlib.nullcontext(), second),
    )
    second.before = watched.done()
    heap.give_back()
    return result


def _draws() -> Any:
    """The states of the generators that a second run draws from."""
    return *generators.of_torch(), generators.drawn()


class _Second:
    """The surroundings of a second run: its modules have the parameters that they had, what they
    move starts as it was and is put back, and random generators draw what they drew the first time.
    A retained graph is run again more than once, so this can be entered again.
    """

    def __init__(self, draws: Any, modules: Any, parameters: Any) -> None:
        self.draws, self.modules, self.parameters = draws, modules, parameters
        self.before: List[Any] = []
        self.stack: List[Any] = []

    def __enter__(self) -> None:
        heap.give_back()
        later = _draws()
        generators.put_back(self.draws)
        inside = contextlib.ExitStack()
        inside.enter_context(self.parameters)
        inside.enter_context(moving.results_as_they_are(self.modules))
        inside.enter_context(moving.again(self.before))
        self.stack.append((later, inside))

    def __exit__(self, *why: Any) -> None:
        later, inside = self.stack.pop()
        inside.__exit__(None, None, None)
        generators.put_back(later)
