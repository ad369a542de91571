"""A card on the CPU: every tensor's memory is counted, and a request beyond the limit fails as on a
card. So a whole loop can run out, and be made to fit, without one. Work spaces of libraries and
fragmentation are not there.
"""

import contextlib
import dataclasses
import random
import weakref
from unittest import mock

import torch
from _memroom_probe.fit.measure import cost
from _memroom_probe.fit.memory import room
from _memroom_probe.fit.remedies import activation_offload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from training import plain, remedies, sow

# What is asked for after a first attempt that ran out.
ASKED = [
    ("micro_batch", {"failed": True}),
    ("checkpointing", {"failed": True}),
    ("activation_offload", {"failed": True, "measured": True}),
]


class Card(TorchDispatchMode):
    """Counts while it is entered. limit: bytes; 0: none."""

    is_card = True  # it is the governor's room, too

    def __init__(self, limit=0):
        super().__init__()
        self.limit, self.live, self.most, self.known, self.away = limit, 0, 0, {}, 0
        self.cramped = 0  # bytes from which on a request makes the allocator give back all it keeps
        self.given_back = 0  # how often it has

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not self.away:
            for tensor in tree_flatten(result)[0]:
                if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                    self._count(tensor.untyped_storage())
        return result

    def _count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        if self.limit and self.live + size > self.limit:
            raise torch.cuda.OutOfMemoryError("%d of %d bytes are held" % (self.live, self.limit))
        self.known[key] = size
        self.live += size
        self.given_back += bool(self.cramped and self.live > self.cramped)
        self.most = max(self.most, self.live)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key):
        self.live -= self.known.pop(key, 0)

    def held(self):
        return self.live

    def start_peak(self):
        self.most = self.live

    def wait(self):
        pass

    def peak(self):
        return self.most

    def kept(self):
        return self.live

    def flushes(self):
        return self.given_back


@contextlib.contextmanager
def inserted(card):
    """The card counts, and host memory beside it does not."""

    class Sent(activation_offload._Sent):
        def __init__(self, tensor, storage):
            card.away += 1
            super().__init__(tensor, storage)
            card.away -= 1

        def back(self):
            return self.there.clone()

    before = room.of, activation_offload._Sent
    room.of = lambda device, limit=None: card
    activation_offload._Sent = Sent
    try:
        with card:
            yield card
    finally:
        room.of, activation_offload._Sent = before


@contextlib.contextmanager
def other_times(seed):
    """Whatever is measured takes other times, as on another machine or a busy one."""
    draw, measured = random.Random(seed), cost.cost

    def seconds():
        return 10 ** draw.uniform(-5, -1)

    def with_other_times(*args, **kwargs):
        return dataclasses.replace(
            measured(*args, **kwargs),
            time_fixed=seconds(),
            time_row=seconds() / 100,
            floor=draw.choice([0, seconds()]),
            travel=seconds() / 1e6,
        )

    with mock.patch.object(cost, "cost", with_other_times):
        yield


def run_on(loop, card, asked=()):
    """What a loop yields on a card, and what remedies said. Small tensors may travel too: all of
    them are small here.
    """
    if asked and plain([loop]) is None:
        run_on(loop, Card())
    sow(3)
    everything = (float("inf"), 1024)
    with mock.patch.object(activation_offload.Away.__init__, "__defaults__", everything):
        with inserted(card), remedies(*asked, of=[loop]) as told:
            return list(loop()), told
