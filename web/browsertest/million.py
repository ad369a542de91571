"""Writes a PyTorch snapshot with a given number of recorded events (argument 1) to a file (2)."""

import pickle
import random
import sys

SEGMENT = 2 << 30
SEGMENTS = 16
BASE = 0x7F0000000000
SIZES = [512, 4096, 65536, 1 << 20, 3 << 20, 8 << 20]


class Memory:
    """Places blocks one after the other and gives freed ones out again."""

    def __init__(self):
        self.free = {}
        self.used = [0] * SEGMENTS
        self.live = []

    def take(self, size):
        if self.free.get(size):
            return self.free[size].pop()
        for i in range(SEGMENTS):
            if self.used[i] + size <= SEGMENT:
                self.used[i] += size
                return BASE + i * SEGMENT + self.used[i] - size
        return None

    def give(self):
        """Frees a block, mostly a young one."""
        low = max(0, len(self.live) - 40) if random.random() < 0.8 else 0
        at = random.randrange(low, len(self.live))
        self.live[at], self.live[-1] = self.live[-1], self.live[at]
        addr, size = self.live.pop()
        self.free.setdefault(size, []).append(addr)
        return addr, size


def entry(action, addr, size, time_us, frames=()):
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "frames": list(frames),
    }


def record(count, memory):
    stacks = [
        [
            {"filename": "/x/model_%d.py" % (i % 17), "name": "layer_%d" % i, "line": i},
            {"filename": "/x/train.py", "name": "forward", "line": i % 7},
            {"filename": "/x/train.py", "name": "main", "line": 3},
        ]
        for i in range(400)
    ]
    history = [entry("segment_alloc", BASE + i * SEGMENT, SEGMENT, 0) for i in range(SEGMENTS)]
    while len(history) < count:
        now = 3 * len(history)
        if memory.live and (len(memory.live) > 3000 or random.random() < 0.49):
            addr, size = memory.give()
            history.append(entry("free_requested", addr, size, now))
            history.append(entry("free_completed", addr, size, now))
            continue
        size = random.choice(SIZES)
        addr = memory.take(size)
        if addr is not None:
            memory.live.append((addr, size))
            history.append(entry("alloc", addr, size, now, random.choice(stacks)))
    return history[:count]


def block(addr, size, state):
    return {"address": addr, "size": size, "requested_size": size, "state": state, "frames": []}


def segments(live):
    for i in range(SEGMENTS):
        begin, blocks = BASE + i * SEGMENT, []
        at, end = begin, begin + SEGMENT
        for addr, size in sorted(b for b in live if begin <= b[0] < end):
            if addr > at:
                blocks.append(block(at, addr - at, "inactive"))
            blocks.append(block(addr, size, "active_allocated"))
            at = addr + size
        if at < end:
            blocks.append(block(at, end - at, "inactive"))
        yield {
            "device": 0,
            "address": begin,
            "total_size": SEGMENT,
            "allocated_size": 0,
            "active_size": 0,
            "requested_size": 0,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }


def main():
    random.seed(1)
    memory = Memory()
    history = record(int(sys.argv[1]), memory)
    snapshot = {
        "segments": list(segments(memory.live)),
        "device_traces": [history],
        "allocator_settings": {},
    }
    with open(sys.argv[2], "wb") as file:
        pickle.dump(snapshot, file, protocol=int(sys.argv[3]) if len(sys.argv) > 3 else 5)


main()
