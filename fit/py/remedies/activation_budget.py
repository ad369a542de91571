"""How much a compiled program keeps for its backward pass, decided while it is compiled.

torch.compile divides a training graph into a forward and a backward part, and chooses what the
forward part keeps. torch can be told to keep less and to compute the rest again (its activation
memory budget). Here the share is found at that very moment, from the sizes in the graph and the
room there is: the program is compiled once, as it would be without us, and nothing is tried out
beforehand.
"""

from typing import Any, Callable, Dict

import torch

from ... import imports
from ..memory import room

# Share of what is computed again that is taken to be there at once: a ViT on an H200 held 0.42 of
# it with a budget of 0.37, and 0.53 with one of 0.17.
AT_ONCE = 0.5
TRIES = 4  # shares that are tried for one graph; each costs about as much as one division
# Share below which nothing is won: what is computed again is then there all at once.
LEAST = 0.1


def install(params: Dict[str, Any], say: Callable[..., Any]) -> None:
    budget = Budget(say, params.get("budget"), params.get("limit"), params.get("factor") or 1.0)
    imports.when_imported("torch._functorch.partitioners", budget.install)


def is_compiled(module: torch.nn.Module) -> Any:
    """Whether torch.compile was called for the module or for something in it."""
    return type(module).__name__ == "OptimizedModule" or any(
        getattr(m, "_compiled_call_impl", None) is not None for m in module.modules()
    )


class Budget:
    """Stands in front of the partitioner's choice. fixed: a share that the user demands; limit:
    bytes, if the caller knows a lower wall; factor: share of the room to plan with.
    """

    def __init__(self, say: Any, fixed: Any = None, limit: Any = None, factor: Any = 1.0) -> None:
        self.say, self.fixed, self.limit, self.factor = say, fixed, limit, factor
        self.graphs = 0
        self._kept: Dict[Any, Any] = {}  # frame -> (which of its compilations, bytes kept for it)

    def install(self, partitioners: Any) -> Any:
        original = getattr(partitioners, "choose_saved_values_set", None)
        original = getattr(original, "stands_for", original)
        if original is None:
            self.say("declined", "this torch has no activation memory budget", id=ID)
            return
        # A program from torch's cache was divided for another room.
        config = partitioners.config
        if hasattr(config, "enable_autograd_cache"):
            config.enable_autograd_cache = False
        self.partitioners, self.original = partitioners, original

        def choose_saved_values_set(
            joint_graph: Any, node_info: Any, memory_budget: int = 1
        ) -> Any:
            if memory_budget != 1:  # the user has said how much
                return original(joint_graph, node_info, memory_budget=memory_budget)
            return self._choose(joint_graph, node_info)

        setattr(choose_saved_values_set, "stands_for", original)  # noqa: B010
        partitioners.choose_saved_values_set = choose_saved_values_set

    def _choose(self, graph: Any, info: Any) -> Any:
        with _Once(self.partitioners):
            usual = self.original(graph, info, memory_budget=1)
            try:
                return self._within(graph, info, usual)
            except Exception as why:  # a fault of ours costs the remedy, not the training
                self.say("declined", "torch.compile: %s: %s" % (type(why).__name__, why), id=ID)
                return usual

    def _within(self, graph: Any, info: Any, usual: Any) -> Any:
        self.graphs += 1
        device = _device(graph)
        whole = self._bytes(usual, info)
        if device is None or not whole:
            return usual
        around = room.of(device, self.limit)
        spare = max(0, self._spare(around, graph, usual, info))
        taken, share = usual, 1.0
        # Where the program has checkpoint regions, computing more of it again at once wins nothing.
        regions = any(self.partitioners.must_recompute(n) for n in graph.nodes)
        if self.fixed or whole > spare and not regions:
            spare = max(0, (spare - AT_ONCE * whole) / (1 - AT_ONCE))
            taken, share = self._smaller(graph, info, usual, whole, spare)
        kept = self._bytes(taken, info)
        self._remember(kept)
        self._tell(whole, kept, share, around)
        return taken

    def _smaller(self, graph: Any, info: Any, usual: Any, whole: Any, spare: Any) -> Any:
        """The largest choice that fits, or else the smallest that was found."""
        if self.fixed:
            return self.original(graph, info, memory_budget=self.fixed), self.fixed
        found, share = [(whole, 1.0, usual)], max(LEAST, spare / whole)
        for _ in range(TRIES):
            values = self.original(graph, info, memory_budget=share)
            size = self._bytes(values, info)
            found.append((size, share, values))
            if 0.85 * spare <= size <= spare or share <= LEAST and size > spare:
                break
            share = min(0.98, max(LEAST, share * min(2.0, max(0.3, 0.95 * spare / max(size, 1)))))
            if any(abs(share - known) < 0.02 for _, known, _ in found):
                break
        fitting = [f for f in found if f[0] <= spare] or [min(found, key=lambda f: f[0])]
        _, share, values = max(fitting, key=lambda f: f[0])
        return values, share

    def _spare(self, around: Any, graph: Any, usual: Any, info: Any) -> Any:
        """Bytes for what is kept: the room without what is there, without gradients and optimizer
        state to come, and without the worst moment, which is where the largest result meets its
        gradients. Results that are not kept may never be written to memory: they are fused away.
        """
        size, inputs = self.partitioners._size_of, set(info.inputs)
        largest = max([size(n) for n in usual if n not in inputs], default=0)
        tangents = sum(size(n) for n in graph.nodes if _is_tangent(n))
        planned = sum(kept for frame, (_, kept) in self._kept.items() if frame != _frame()[0])
        return (
            room.SAFETY * self.factor * around.limit
            - around.held()
            - room.state_to_come()
            - _gradients_to_come()
            - max(2 * largest, 4 * tangents)
            - planned
        )

    def _bytes(self, values: Any, info: Any) -> Any:
        """Bytes of what is kept besides the inputs, which are there anyway."""
        inputs = set(info.inputs)
        return sum(self.partitioners._size_of(n) for n in values if n not in inputs)

    def _remember(self, kept: Any) -> None:
        frame, number = _frame()
        before = self._kept.get(frame)
        self._kept[frame] = (number, kept + (before[1] if before and before[0] == number else 0))

    def _tell(self, whole: Any, kept: Any, share: Any, around: Any) -> None:
        if self.graphs > 1:
            self.say(
                "note", "torch.compile: %d training graphs compiled so far" % self.graphs, id=ID
            )
        if kept >= whole:
            self.say("note", "torch.compile: %s kept for backward fit" % room.words(whole), id=ID)
            return
        self.say(
            "applied",
            "torch.compile: %s of %s kept for backward (activation memory budget %.2f), the rest "
            "computed again; equal up to rounding" % (room.words(kept), room.words(whole), share),
            id=ID,
            equivalence="exact",
            limit=around.limit,
            twice=round(1 - kept / whole, 3),
        )


ID = "activation_budget"


class _Once:
    """While this is entered, one and the same division is computed once: several shares of one
    graph need the same ones.
    """

    def __init__(self, partitioners: Any) -> None:
        self.partitioners = partitioners
        self.known: Dict[Any, Any] = {}

    def __enter__(self) -> Any:
        self.original = original = self.partitioners.solve_min_cut

        def solve_min_cut(
            joint_graph: Any, node_info: Any, min_cut_options: Any, dont_ban: Any = None
        ) -> Any:
            key = (id(joint_graph), repr(min_cut_options), frozenset(dont_ban or ()))
            if key not in self.known:
                self.known[key] = original(joint_graph, node_info, min_cut_options, dont_ban)
            return self.known[key]

        self.partitioners.solve_min_cut = solve_min_cut

    def __exit__(self, *_: Any) -> None:
        self.partitioners.solve_min_cut = self.original


def _device(graph: Any) -> Any:
    """Where the graph computes, or None."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.device
    return None


def _is_tangent(node: Any) -> Any:
    return node.op == "placeholder" and "tangents" in str(node.target)


def _frame() -> Any:
    """Which piece of the program is compiled, and for which time."""
    try:
        known = torch._guards.CompileContext.current_compile_id()
    except AttributeError:
        known = None
    return getattr(known, "frame_id", None), getattr(known, "frame_compile_id", None)


def _gradients_to_come() -> Any:
    """Bytes of gradients that the optimizers' parameters do not have yet."""
    parameters = {
        id(p): p for o in room.optimizers() for group in o.param_groups for p in group["params"]
    }
    return sum(
        p.numel() * p.element_size()
        for p in parameters.values()
        if p.requires_grad and p.grad is None
    )
