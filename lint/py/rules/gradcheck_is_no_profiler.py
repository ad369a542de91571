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
from ..names import File, key, method, own, targets, walk

_OF_MEMORY = re.compile(r"memory|profil|leak|vram", re.I)
_READS_MEMORY = re.compile(
    r"memory_(allocated|reserved|cached|summary|stats|info)|tracemalloc|^rss$"
)


def gradcheck(file: File) -> Iterator[Finding]:
    """gradcheck in a training loop, in a helper that one calls, or where memory is spoken of, or of
    torch's own layers
    """
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
            trains = bool(place.loops) and any(
                isinstance(n, ast.Call) and method(n) == "backward" for n in walk(place.loops[0])
            )
            helps = place.function is not None and place.function.name in called
            found = trains or helps or _of_memory(file, s)
            if found or _of_layers(file, node):
                yield finding(
                    "gradcheck-is-no-profiler",
                    s,
                    "gradcheck compares gradients with finite differences in double precision: it measures no memory and needs a lot of it",
                    hint=not found or isinstance(s, ast.Assert),
                )


def _of_layers(file: File, call: ast.Call) -> bool:
    """layer = nn.Linear(3, 3).double(): torch's own, whose gradients are known to be right"""
    name = key(call.args[0]) if call.args else None
    return name is not None and any(
        isinstance(n, ast.Call) and (file.callee(n) or "").startswith("torch.nn.")
        for s in file.statements
        if isinstance(s, ast.Assign) and any(key(t) == name for t in targets(s))
        for n in walk(s.value)
    )


def _of_memory(file: File, s: ast.stmt) -> bool:
    """Do the names around, or what is printed of the result, speak of memory?"""
    place = file.places[s]
    around = place.loops[0] if place.loops else place.function
    beside, words = file.nodes, _READS_MEMORY  # a script without functions
    if around is not None:
        beside, words = walk(around), _OF_MEMORY
    if any(
        words.search(n.attr if isinstance(n, ast.Attribute) else n.id)
        for n in beside
        if isinstance(n, (ast.Attribute, ast.Name))
    ):
        return True
    results = [name for name in map(key, targets(s)) if name]
    said = results + [o.name for o in (place.function, place.klass) if o is not None]
    if place.function is not None:
        said.append(ast.get_docstring(place.function) or "")
    for other in file.statements:
        nodes = list(own(other))
        if other is s or any(isinstance(n, ast.Name) and n.id in results for n in nodes):
            said += [str(n.value) for n in nodes if isinstance(n, ast.Constant)]
    return any(map(_OF_MEMORY.search, said))


CHECKS = (gradcheck,)
