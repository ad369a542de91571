"""A hash table in shared memory, for dicts with many keys. Python's own hash of a string differs
from process to process, so the table has a hash of its own.
"""

import array
import zlib
from typing import Any, List, Optional

MANY = 4096  # keys; below this each process makes a dict of its own
EMPTY = 0


def stable_hash(key: Any) -> Optional[int]:
    """The same in every process; equal for equal keys. None for keys of other types."""
    kind = type(key)
    if kind is str:
        return zlib.crc32(key.encode("utf-8", "surrogatepass")) * 0x9E3779B1
    if kind is bytes:
        return zlib.crc32(key, 1) * 0x9E3779B1
    if kind is int or kind is float or kind is bool:
        return (hash(key) & 0xFFFFFFFFFFFFFFFF) * 0x9E3779B1  # not randomised, equal for 1 and 1.0
    if kind is tuple:
        total = 0x345678
        for part in key:
            inner = stable_hash(part)
            if inner is None:
                return None
            total = (total * 1000003 ^ inner) & 0xFFFFFFFFFFFFFFFF
        return total
    return None


def table(keys: List[Any]) -> Optional["array.array[int]"]:
    """Places of keys by hash, one more than the place; None where a plain dict is better."""
    if len(keys) < MANY:
        return None
    size = 1 << (2 * len(keys)).bit_length()
    slots = array.array("Q", bytes(8 * size))
    for place, key in enumerate(keys):
        hashed = stable_hash(key)
        if hashed is None:
            return None
        at = (hashed ^ hashed >> 15) & (size - 1)
        while slots[at] != EMPTY:
            at = (at + 1) & (size - 1)
        slots[at] = place + 1
    return slots


def find(slots: Any, keys: Any, key: Any) -> int:
    """The place of key, or -1."""
    hashed = stable_hash(key)
    if hashed is None:
        hash(key)  # an unhashable key is a TypeError, as in a dict
        plain = key.item() if hasattr(key, "item") else key  # a NumPy scalar
        hashed = stable_hash(plain)
        if hashed is None:  # such a key may still be equal to one of ours
            return next((i for i, k in enumerate(keys) if k == key), -1)
    size = len(slots)
    at = (hashed ^ hashed >> 15) & (size - 1)
    while slots[at] != EMPTY:
        place = slots[at] - 1
        if keys[place] == key:
            answer: int = place
            return answer
        at = (at + 1) & (size - 1)
    return -1
