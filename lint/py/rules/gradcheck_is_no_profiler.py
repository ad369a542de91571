"""The belief that gradcheck profiles memory.

severity: warning

gradcheck verifies gradients numerically. It says nothing about memory.

Instead: Use `memroom run` or torch.cuda.memory._record_memory_history().
"""

import ast
import re
from typing import Iterator

from ..findings import Finding, finding
from ..flow import scopes
from ..names import File, method, own, walk

_OF_MEMORY = re.compile(r"memory|profil|leak|vram", re.I)
_READS_MEMORY = re.compile(
    r"memory_(allocated|reserved|cached|summary|stats|info)|tracemalloc|^rss$"
)


def gradcheck(file: File) -> Iterator[Finding]:
    """gradcheck in a training loop, in a helper that one calls, or beside readings of memory"""
    called = {
        method(n)
        for scope in scopes(file)
        for s in scope.statements
        if file.places[s].loops and scope.has_backward(file.places[s].loops[-1])
        for n in own(s)
        if isinstance(n, ast.Call)
    }
    for s in file.statements:
        place = file.places[s]
        for node in own(s):
            if not isinstance(node, ast.Call) or method(node) not in ("gradcheck", "gradgradcheck"):
                continue
            around = place.loops[0] if place.loops else place.function
            trains = bool(place.loops) and any(
                isinstance(n, ast.Call) and method(n) == "backward" for n in walk(place.loops[0])
            )
            helps = place.function is not None and place.function.name in called
            beside, words = file.nodes, _READS_MEMORY  # a script without functions
            if around is not None:
                beside, words = walk(around), _OF_MEMORY
            measures = any(
                words.search(n.attr if isinstance(n, ast.Attribute) else n.id)
                for n in beside
                if isinstance(n, (ast.Attribute, ast.Name))
            )
            if trains or helps or measures:
                yield finding(
                    "gradcheck-is-no-profiler",
                    s,
                    "gradcheck compares gradients with finite differences in double precision: it measures no memory and needs a lot of it",
                    hint=isinstance(s, ast.Assert),
                )


CHECKS = (gradcheck,)
