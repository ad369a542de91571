"""Operations added in the loop.

severity: warning

In graph mode every call of a tf function adds operations to the graph, and their constants with
them. The session slows down and memory grows.

Instead: Build the operation once before the loop, with a placeholder for what changes, and call
`tf.get_default_graph().finalize()` to be told.
"""

import ast
import re
from typing import Any, Iterator

from ..evidence import few_rounds
from ..findings import Finding, finding
from ..names import key, method, own, walk

_SMALL_OPS = re.compile(r"(variables|tables)_initializer$|\.(Session|Graph|ConfigProto)$")


def graph_of_session(file: Any) -> Iterator[Finding]:
    """sess.run(tf.assign(v, x)) in a loop: TensorFlow 1 adds an operation in every round"""
    if "tensorflow" not in file.modules:
        return
    for s in file.statements:
        loops = file.places[s].loops
        if not loops or few_rounds(loops[-1], file):
            continue
        for n in own(s):
            if not isinstance(n, ast.Call) or method(n) != "run" or not n.args:
                continue
            owner = key(n.func.value) if isinstance(n.func, ast.Attribute) else None
            if owner is None or "sess" not in owner.lower():
                continue
            built = [
                file.callee(c)
                for c in walk(n.args[0])
                if isinstance(c, ast.Call)
                and (file.callee(c) or "").startswith("tensorflow.")
                and not _SMALL_OPS.search(file.callee(c) or "")
            ]
            if built:
                yield finding(
                    "tf-graph-grows",
                    s,
                    "every round adds `%s` to the graph before it is run, and a graph never "
                    "shrinks" % built[0].replace("tensorflow.", "tf."),
                )


CHECKS = (graph_of_session,)
