"""Tensors on card 0 by default.

severity: info

Without a number `.cuda()` means the current card, which is card 0 unless it is set.

Instead: Call torch.cuda.set_device(n) first, use one device variable (`.to(device)`), or start
with CUDA_VISIBLE_DEVICES=n.
"""

import ast
import re
from typing import Iterator

from ..findings import Finding, finding
from ..names import File, constant, key


def default_card(file: File) -> Iterator[Finding]:
    """model.cuda(5), then x.cuda() without a number"""
    chosen = None
    plain = []
    for node in file.nodes:
        if isinstance(node, ast.Constant) and node.value == "CUDA_VISIBLE_DEVICES":
            return
        if not isinstance(node, ast.Call):
            continue
        if (file.callee(node) or "").endswith("set_device"):
            return
        if not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "cuda" and (key(node.func.value) or "") != "torch":
            if not node.args and not node.keywords:
                plain.append(node)
            elif (
                node.args and isinstance(constant(node.args[0]), int) and constant(node.args[0]) > 0
            ):
                chosen = constant(node.args[0])
        elif node.func.attr == "to" and node.args:
            named = re.match(r"cuda:(\d+)$", str(constant(node.args[0], "")))
            if named and int(named.group(1)) > 0:
                chosen = int(named.group(1))
            elif constant(node.args[0]) == "cuda":
                plain.append(node)
    if chosen is not None and plain:
        first = min(plain, key=lambda n: n.lineno)
        yield finding(
            "default-card",
            first,
            "this goes to card 0 because .cuda() is called without a number, while the model is on "
            "card %d: card 0 carries tensors and a CUDA context too" % chosen,
        )


CHECKS = (default_card,)
