"""Measures a script from inside, the same way with and without memroom.

It seeds the generators when torch has been imported, notes the time of each optimizer step and the
loss of each backward pass, and ends the script after ZOO_STEPS steps. With ZOO_STATES it also notes
a hash of the states of all generators at each step. ZOO_OUT is the file it writes. With ZOO_RING
the script takes turns with others after its first steps: a turn is some steps while it holds the
lock ZOO_GATE, so that no other script is timed. ZOO_SLOT is its place in the ring. What disturbs
the machine for longer than a turn disturbs all in the ring.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import statistics
import sys
import time
from types import ModuleType
from typing import Any, Sequence

import of_tensorflow

STAMPS: list[float] = []
LOSSES: list[Any] = []  # one tensor for each device, filled as the script goes: nothing grows
MOST_LOSSES = 8192
COUNT = 0
STATES: list[str] = []
STEPS = int(os.environ.get("ZOO_STEPS", "0"))
BY_BACKWARD = os.environ.get("ZOO_COUNT") == "backward"
RING = os.environ.get("ZOO_RING")
FIRST = 6  # steps before the first turn
TURNS = int(os.environ.get("ZOO_TURNS", "4"))
LEAST, SECONDS = 2, 1.0  # steps and seconds of a turn, after one step that is not timed:
# what is due after some time is due after every pause
PATIENCE = 90.0  # seconds after which a turn will not come: another has ended
TURN: list[Any] = []  # the lock that is held, the step and the time from which this turn is timed
BLOCKS: list[float] = []  # milliseconds a step, of each turn
STARTED_BY = os.getpid()
BEGAN = time.time()


def states() -> str:
    import numpy
    import torch

    digest = hashlib.blake2b(digest_size=6)
    digest.update(
        repr(random.getstate()[1][-1]).encode() + repr(hash(random.getstate()[1])).encode()
    )
    kept: Any = numpy.random.get_state()
    digest.update(kept[1].tobytes() + repr(kept[2]).encode())
    digest.update(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            digest.update(state.numpy().tobytes())
    return digest.hexdigest()


def note() -> None:
    if os.getpid() != STARTED_BY:
        return
    STAMPS.append(time.perf_counter())
    if RING and len(STAMPS) >= FIRST:
        take_turns(RING)
    if "ZOO_STATES" in os.environ:
        STATES.append(states())
    if STEPS and len(STAMPS) >= STEPS:
        write()
        raise SystemExit(0)


def synchronize() -> None:
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def take_turns(ring: str) -> None:
    """Ends a turn that has lasted long enough, and waits for the next one."""
    if TURN:
        lock, step, began = TURN
        if len(STAMPS) == step:
            synchronize()
            TURN[2] = time.perf_counter()
            return
        if len(STAMPS) - step < LEAST or time.perf_counter() - began < SECONDS:
            return
        synchronize()
        BLOCKS.append((time.perf_counter() - began) * 1000 / (len(STAMPS) - step))
        lock.close()
        TURN.clear()
        with open(ring, "ab") as done:
            done.write(b".")
        if len(BLOCKS) == TURNS:
            write()
            raise SystemExit(0)
    slot, members = map(int, os.environ["ZOO_SLOT"].split("/"))
    synchronize()
    until = time.perf_counter() + PATIENCE
    while os.path.getsize(ring) % members != slot:
        if time.perf_counter() > until:
            write()
            raise SystemExit(0)
        time.sleep(0.001)
    lock = open(os.environ["ZOO_GATE"], "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    TURN.extend((lock, len(STAMPS) + 1, 0.0))


def write() -> None:
    torch = sys.modules.get("torch")
    if torch is None or os.getpid() != STARTED_BY or "ZOO_OUT" not in os.environ or not STAMPS:
        return
    row: dict[str, object] = {"steps": len(STAMPS), "states": STATES, "until_first": STAMPS[0]}
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        row["reserved"] = stats.get("reserved_bytes.all.peak", 0)
        row["allocated"] = stats.get("allocated_bytes.all.peak", 0)
        row["device_total"] = torch.cuda.mem_get_info()[1]
    end = time.perf_counter()
    row["until_first"] = round(time.time() - BEGAN - (end - STAMPS[0]), 2)
    between = [b - a for a, b in zip(STAMPS, STAMPS[1:])]
    if len(between) > 3:
        row["ms"] = statistics.median(between[len(between) // 2 :]) * 1000
    if BLOCKS:
        row["blocks"] = BLOCKS
    row["losses"] = LOSSES[0][:COUNT].tolist() if LOSSES else []
    with open(os.environ["ZOO_OUT"], "w") as out:
        json.dump(row, out)


def hook(torch: Any) -> None:
    random.seed(1)
    torch.manual_seed(1)
    try:
        import numpy

        numpy.random.seed(1)
    except ImportError:
        pass
    from torch.optim.optimizer import register_optimizer_step_post_hook

    plain = torch.Tensor.backward

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        global COUNT
        if os.getpid() == STARTED_BY and self.numel() == 1 and COUNT < MOST_LOSSES:
            if not LOSSES:
                LOSSES.append(torch.zeros(MOST_LOSSES, device=self.device))
            LOSSES[0][COUNT].copy_(self.detach())
            COUNT += 1
        result = plain(self, *args, **kwargs)
        if BY_BACKWARD:
            note()
        return result

    torch.Tensor.backward = backward
    if not BY_BACKWARD:
        register_optimizer_step_post_hook(lambda *_: note())
    atexit.register(write)


class After(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls a module's hook once it has been imported."""

    inner: importlib.abc.Loader

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WAITED:
            return None
        WAITED.remove(name)
        for finder in list(sys.meta_path):  # memroom's is one of them
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader = After()
                loader.inner = spec.loader
                spec.loader = loader
                return spec
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        if os.environ.get("ZOO_OUT"):
            HOOKS[module.__name__](module)


HOOKS = {"torch": hook, **of_tensorflow.HOOKS}
WAITED = set(HOOKS)
sys.meta_path.insert(0, After())
