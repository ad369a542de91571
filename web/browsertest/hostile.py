"""Writes a snapshot whose names are attacks (argument 1), one with half a million events (2), one
without history (3).
"""

import pickle
import random
import sys

EVIL = [
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror='window.pwned=1'>",
    '"onmouseover=window.pwned=1 x="',
    "\x1b]0;pwned\x07\x1b[31m",
    "\u202egpj.exe",
    "javascript:window.pwned=1",
    "<!--",
    "]]>",
]


def entry(action, addr, size, time_us, frames):
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "frames": frames,
    }


def segment(addr, size, blocks):
    return {
        "device": 0,
        "address": addr,
        "total_size": size,
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


def hostile():
    base, size = 0x7F0000000000, 32 << 20
    history = [entry("segment_alloc", base, size, 1, [])]
    blocks = []
    for i, text in enumerate(EVIL):
        frames = [
            {"filename": text, "name": text, "line": i},
            {"filename": "/x/" + text, "name": "forward", "line": 1},
        ]
        history.append(entry("alloc", base + (i << 21), 2 << 20, 2 + i, frames))
        blocks.append(
            {
                "address": base + (i << 21),
                "size": 2 << 20,
                "requested_size": 2 << 20,
                "state": "active_allocated",
                "frames": frames,
            }
        )
    blocks.append(
        {
            "address": base + (len(EVIL) << 21),
            "size": size - (len(EVIL) << 21),
            "requested_size": 0,
            "state": "inactive",
            "frames": [],
        }
    )
    return {"segments": [segment(base, size, blocks)], "device_traces": [history]}


def large(pairs):
    rng = random.Random(1)
    stacks = [
        [{"filename": f"/site-packages/m{i}.py", "name": "forward", "line": i}] for i in range(300)
    ] + [[]]
    base, slot = 0x7F0000000000, 20 << 20
    free = [base + i * slot for i in range(2000)]
    history = [entry("segment_alloc", a, slot, 1, []) for a in free]
    live = []
    for t in range(pairs):
        if len(live) > 1500 or live and rng.random() < 0.45:
            addr, size, frames = live.pop(rng.randrange(len(live)))
            history += [
                entry("free_requested", addr, size, t, frames),
                entry("free_completed", addr, size, t, frames),
            ]
            free.append(addr)
        else:
            addr, size, frames = free.pop(), rng.randrange(512, slot), rng.choice(stacks)
            history.append(entry("alloc", addr, size, t, frames))
            live.append((addr, size, frames))
    return {"segments": [], "device_traces": [history]}


def states():
    """Two devices whose memory is known but not how it came about."""
    both = []
    for device in (0, 3):
        base = 0x7F0000000000 + (device << 32)
        frames = [
            {"filename": "/site-packages/torch/nn/modules/module.py", "name": "_apply", "line": 1}
        ]
        one = segment(
            base,
            20 << 20,
            [
                {
                    "address": base,
                    "size": 8 << 20,
                    "requested_size": 8 << 20,
                    "state": "active_allocated",
                    "frames": frames,
                },
                {
                    "address": base + (8 << 20),
                    "size": 12 << 20,
                    "requested_size": 0,
                    "state": "inactive",
                    "frames": [],
                },
            ],
        )
        both.append(dict(one, device=device))
    return both


with open(sys.argv[3], "wb") as f:
    pickle.dump(states(), f)
with open(sys.argv[1], "wb") as f:
    pickle.dump(hostile(), f)
with open(sys.argv[2], "wb") as f:
    pickle.dump(large(350_000), f)
