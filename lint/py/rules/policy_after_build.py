"""Mixed precision set too late.

severity: warning
remedy: mixed_precision

A layer takes the policy that is in force when it is made. Set later, the policy changes nothing
for the layers that are there.

Instead: Move `set_global_policy("mixed_float16")` above the first layer.
"""

import ast
import re
from typing import Any, Iterator

from ..findings import Finding, finding
from ..flow import scopes
from ..names import key, method, own, walk
from ..tensorflow import uses

_BUILDS = re.compile(r"^(Sequential|Model|[A-Z]\w*Net\w*|Dense|Conv\dD|Embedding|LSTM|GRU)$")


def policy_after_build(file: Any) -> Iterator[Finding]:
    """model = Sequential(...), and set_global_policy("mixed_float16") below it"""
    if not uses(file):
        return
    for scope in scopes(file):
        built = None
        for s in scope.statements:
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                name = file.callee(call) or ""
                if method(call) in ("set_global_policy", "set_policy", "set_dtype_policy"):
                    text = " ".join(
                        str(n.value)
                        for n in walk(_meaning(scope, call))
                        if isinstance(n, ast.Constant)
                    )
                    if built is not None and "16" in text and not _builds_below(file, scope, s):
                        yield finding(
                            "policy-after-build",
                            s,
                            "the policy is set after `%s` was built in line %d: its layers keep "
                            "float32, and nothing gets smaller" % (built[0], built[1]),
                        )
                        return
                elif isinstance(s, ast.Assign) and _is_builder(file, name, call):
                    built = (key(s.targets[0]) or method(call), s.lineno)


def _meaning(scope: Any, call: ast.Call) -> ast.AST:
    """The call, and what its argument was set to"""
    names = {key(a) for a in call.args} - {None}
    values = [
        s.value
        for s in scope.statements
        if isinstance(s, ast.Assign) and any(key(t) in names for t in s.targets)
    ]
    return ast.Tuple(elts=[call, *values], ctx=ast.Load())


def _is_builder(file: Any, name: str, call: ast.Call) -> bool:
    own_model = file.classes.get(method(call))
    if own_model is not None:
        return any((file.dotted(b) or "").endswith("Model") for b in own_model.bases)
    keras = "keras" in name or name.startswith("tensorflow")
    return keras and (bool(_BUILDS.match(method(call))) or ".applications." in name)


def _builds_below(file: Any, scope: Any, at: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Call) and _is_builder(file, file.callee(n) or "", n)
        for s in scope.statements
        if s.lineno > at.lineno
        for n in own(s)
    )


CHECKS = (policy_after_build,)
