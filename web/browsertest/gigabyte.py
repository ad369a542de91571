"""Writes a snapshot of about a gigabyte: few events, each with a deep stack of its own.

usage: gigabyte.py FILE [MEGABYTES [PROTOCOL]]; protocol 5 or 4
"""

import sys

DEPTH = 24  # frames of one stack
STACKS = 50


def frames(stack: int) -> bytes:
    """A list of frames as opcodes that share nothing with others, as long recordings have it."""
    out = [b"](" if DEPTH else b"]"]
    for depth in range(DEPTH):
        name, file = f"forward_{stack}_{depth}", f"/home/user/project/models/block_{depth}.py"
        out.append(b"}(" + text("name") + text(name) + text("filename") + text(file))
        out.append(text("line") + number(10 * depth + stack) + b"u")
    return b"".join(out) + b"e"


def text(value: str) -> bytes:
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def event(action: str, addr: int, size: int, at: int, stack: bytes) -> bytes:
    head = b"}(" + text("action") + text(action) + text("addr") + number(addr)
    rest = text("size") + number(size) + text("stream") + number(0)
    return head + rest + text("time_us") + number(at) + text("frames") + stack + b"u"


def main() -> None:
    wanted = int(sys.argv[2] if len(sys.argv) > 2 else "1024") << 20
    protocol = int(sys.argv[3] if len(sys.argv) > 3 else "5")
    base, segment, block = 0x7F0000000000, 64 << 20, 2 << 20
    stacks = [frames(i) for i in range(STACKS)]
    with open(sys.argv[1], "wb") as file:
        file.write(
            bytes([0x80, protocol])
            + b"}("
            + text("segments")
            + b"]"
            + text("device_traces")
            + b"](]("
        )
        file.write(event("segment_alloc", base, segment, 1, stacks[0]))
        at = 2
        while file.tell() < wanted:
            for i in range(16):
                file.write(event("alloc", base + i * block, block, at, stacks[(at + i) % STACKS]))
                at += 1
            for i in range(16):
                for action in ("free_requested", "free_completed"):
                    place = base + i * block
                    file.write(event(action, place, block, at, stacks[(at + i) % STACKS]))
                    at += 1
        file.write(event("segment_free", base, segment, at, stacks[0]))
        file.write(b"ee" + text("allocator_settings") + b"}u.")


main()
