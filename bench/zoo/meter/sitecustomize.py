"""Measures a script from inside, the same way with and without memroom.

It seeds the generators when torch has been imported, notes the time of each optimizer step and the
loss of each backward pass, and ends the script after ZOO_STEPS steps. With ZOO_STATES it also notes
a hash of the states of all generators at each step. ZOO_OUT is the file it writes. With ZOO_GATE
the script waits after its first steps until no other holds that lock, then makes steps for some
seconds and ends: scripts start beside each other and are timed one by one.
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
GATE = os.environ.get("ZOO_GATE")
FIRST, LEAST, SECONDS = 3, 12, 7.0  # steps before the gate, steps and seconds after it
OPENED: list[Any] = []  # the lock's file, and the step and time at which it was held
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
    if GATE and len(STAMPS) == FIRST:
        wait()
    STAMPS.append(time.perf_counter())
    if OPENED and len(STAMPS) >= FIRST + LEAST and STAMPS[-1] - OPENED[1] > SECONDS:
        write()
        raise SystemExit(0)
    if "ZOO_STATES" in os.environ:
        STATES.append(states())
    if STEPS and len(STAMPS) >= STEPS:
        write()
        raise SystemExit(0)


def wait() -> None:
    """Holds the lock until the process ends."""
    import torch

    torch.cuda.synchronize()
    OPENED.append(open(GATE or "", "w"))
    fcntl.flock(OPENED[0], fcntl.LOCK_EX)
    OPENED.append(time.perf_counter())


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
    if OPENED:
        row["mean_ms"] = (end - OPENED[1]) * 1000 / (len(STAMPS) - FIRST)
        row["ms"] = statistics.median(between[FIRST:]) * 1000
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
