"""Recurrent layers that work on their batch in pieces, inside of a model that cannot be cut.

cuDNN asks for one piece of memory for all that a recurrent layer keeps for its backward pass, and
for as large a work space. Behind BatchNorm, or where the layer drops values, the model's batch
cannot be split and no call can be run twice; but a recurrent layer treats every sample by itself.
What each piece keeps then waits in host memory, and comes back piece by piece; on a CPU each piece
is computed again.
"""

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch.nn.utils.rnn import PackedSequence

from .checkpointing import checkpointed


def layers(module: torch.nn.Module) -> List[Tuple[str, torch.nn.RNNBase]]:
    """The recurrent layers inside of a module, with their names."""
    return [(name, m) for name, m in module.named_modules() if isinstance(m, torch.nn.RNNBase)]


def cut(module: torch.nn.Module, count: int, twice: bool = False) -> bool:
    """From now on these layers work in so many pieces. twice: each is computed again in the
    backward pass. Returns whether they draw other masks then.
    """
    for _, layer in layers(module):
        forward = vars(layer).get("forward", layer.forward)
        original = getattr(forward, "memroom_stands_for", forward)
        run = _computed_again(layer, original) if twice else original
        stands = _in_pieces(layer, original, run, count)
        vars(layer)["forward"] = stands
    return drops(module)


def drops(module: torch.nn.Module) -> bool:
    """Whether a recurrent layer inside draws masks, which would be others in pieces."""
    return any(m.training and m.dropout > 0 and m.num_layers > 1 for _, m in layers(module))


def _computed_again(layer: torch.nn.RNNBase, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(input: Any, hx: Any = None) -> Any:
        if not torch.is_grad_enabled():
            return original(input, hx)
        if not isinstance(input, PackedSequence):
            return checkpointed(original, ((input, hx), {}), [layer])

        def packed(data: torch.Tensor, hx: Any) -> Any:
            out, last = original(PackedSequence(data, input.batch_sizes), hx)
            return out.data, last

        data, last = checkpointed(packed, ((input.data, hx), {}), [layer])
        return PackedSequence(data, input.batch_sizes), last

    return run


def _in_pieces(
    layer: torch.nn.RNNBase, original: Callable[..., Any], run: Callable[..., Any], count: int
) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(input: Any, hx: Any = None) -> Any:
        if isinstance(input, PackedSequence) and int(input.batch_sizes[0]) > 1:
            return _packed(run, input, hx, count)
        across = 0 if getattr(layer, "batch_first", False) else 1
        if not isinstance(input, torch.Tensor) or input.dim() != 3 or input.size(across) < 2:
            return original(input, hx)
        size = -(-input.size(across) // count)
        results = []
        for i, part in enumerate(input.split(size, across)):
            results.append(run(part, _states(hx, i * size, part.size(across))))
        outputs, states = zip(*results)
        return torch.cat(outputs, across), _joined(states)

    setattr(forward, "memroom_stands_for", original)  # noqa: B010
    return forward


def _packed(run: Callable[..., Any], packed: PackedSequence, hx: Any, count: int) -> Any:
    """Sequences of many lengths, longest first: at each time those that have not ended lie one
    behind the other.
    """
    order, back = packed.sorted_indices, packed.unsorted_indices
    hx = hx if hx is None or order is None else _chosen(hx, order)
    rows, times = int(packed.batch_sizes[0]), packed.batch_sizes
    begins = torch.cumsum(times, 0) - times
    size = -(-rows // count)
    outputs: List[torch.Tensor] = []
    states: List[Any] = []
    taken: List[torch.Tensor] = []
    for first in range(0, rows, size):
        some = min(size, rows - first)
        there = (times - first).clamp(0, some)
        there = there[there > 0]
        spans = zip((begins + first).tolist(), there.tolist())
        places = torch.cat([torch.arange(at, at + n) for at, n in spans]).to(packed.data.device)
        part = PackedSequence(packed.data.index_select(0, places), there)
        out, last = run(part, _states(hx, first, some))
        outputs.append(out.data)
        states.append(last)
        taken.append(places)
    data = torch.cat(outputs).index_select(0, torch.argsort(torch.cat(taken)))
    last = _joined(states)
    last = last if back is None else _chosen(last, back)
    return PackedSequence(data, times, order, back), last


def _joined(states: Sequence[Any]) -> Any:
    """The last states of all pieces; an LSTM has two kinds."""
    if isinstance(states[0], tuple):
        return tuple(torch.cat(some, 1) for some in zip(*states))
    return torch.cat(states, 1)


def _chosen(states: Any, places: torch.Tensor) -> Any:
    if isinstance(states, tuple):
        return tuple(s.index_select(1, places) for s in states)
    return states.index_select(1, places)


def _states(hx: Any, begin: int, count: int) -> Optional[Any]:
    """The states of so many samples. cuDNN wants them in one piece."""
    if hx is None:
        return None
    if isinstance(hx, tuple):
        return tuple(_states(h, begin, count) for h in hx)
    return hx.narrow(1, begin, count).contiguous()
