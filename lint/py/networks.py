"""How many parameters a network has, where its layers are written out with their sizes.

A copy of a small network costs nothing that anybody would notice. What cannot be reckoned is not
called small.
"""

import ast
from typing import Dict, Optional

from .names import FUNCTIONS, LOOPS, key, keyword, method, targets, walk, walk_here

SMALL = 10_000_000  # parameters: 120 MB with the moments of Adam

# Layers without weights, or with one or two for each channel.
_FREE = frozenset(
    """ReLU LeakyReLU ELU SELU GELU SiLU PReLU Tanh Sigmoid Softmax LogSoftmax Softplus Hardswish
    Sequential ModuleList ModuleDict Dropout Dropout2d Dropout3d Identity Flatten Unflatten Upsample
    BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm GroupNorm InstanceNorm1d InstanceNorm2d MaxPool1d
    MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d
    AdaptiveMaxPool2d ZeroPad2d ReflectionPad2d PixelShuffle Softmax2d""".split()
)


def has_no_weights(name: str) -> bool:
    """Upsample, ReLU, MaxPool2d: what they give has a graph only where what they are given has."""
    return name in _WEIGHTLESS


_WEIGHTLESS = frozenset(
    name
    for name in _FREE
    if name not in ("Sequential", "ModuleList", "ModuleDict", "PReLU") and "Norm" not in name
)
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1, "LSTMCell": 4, "GRUCell": 3, "RNNCell": 1}


def is_small(name: str, classes: Dict[str, ast.ClassDef]) -> bool:
    """Is this class a network whose layers add up to little?"""
    if name not in classes:
        return False
    total = _parameters(classes[name], classes, 4)
    return total is not None and 0 < total < SMALL


def _parameters(c: ast.ClassDef, classes: Dict[str, ast.ClassDef], depth: int) -> Optional[int]:
    made = next((f for f in c.body if isinstance(f, FUNCTIONS) and f.name == "__init__"), None)
    if made is None or depth == 0:
        return None
    if any(isinstance(n, LOOPS + (ast.ListComp, ast.GeneratorExp)) for n in walk(made)):
        return None  # as many layers as somebody asks for
    known = _numbers(made)
    total = 0
    for n in walk_here(made):
        if not isinstance(n, ast.Call) or not method(n)[:1].isupper():
            continue
        if method(n) in classes:
            part = _parameters(classes[method(n)], classes, depth - 1)
        else:
            part = _layer(n, known)
        if part is None:
            return None
        total += part
    return total


def _numbers(made: ast.AST) -> Dict[str, int]:
    """Parameters with their defaults, and variables made of them."""
    arguments = made.args  # type: ignore[attr-defined]
    known = {}
    for a, d in zip(reversed(arguments.args), reversed(arguments.defaults)):
        if isinstance(d, ast.Constant) and isinstance(d.value, int):
            known[a.arg] = d.value
    for s in walk_here(made):
        if isinstance(s, ast.Assign):
            value = _number(s.value, known)
            for t in targets(s):
                if value is not None and key(t):
                    known[key(t) or ""] = value
    return known


def _number(node: Optional[ast.AST], known: Dict[str, int]) -> Optional[int]:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, known), _number(node.right, known)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Add):
            return left + right
        return left // right if isinstance(node.op, (ast.FloorDiv, ast.Div)) and right else None
    return known.get(key(node) or "") if node is not None else None


def _layer(call: ast.Call, known: Dict[str, int]) -> Optional[int]:
    name = method(call)
    if name in _FREE:
        return 0

    def size(place: int, *words: str) -> Optional[int]:
        given = [keyword(call, w) for w in words]
        node = call.args[place] if len(call.args) > place else next(filter(None, given), None)
        if isinstance(node, (ast.Tuple, ast.List)) and node.elts:
            node = node.elts[0]
        return _number(node, known)

    first = size(0, "in_features", "in_channels", "input_size", "num_embeddings")
    second = size(1, "out_features", "out_channels", "hidden_size", "embedding_dim")
    if first is None or second is None:
        return None
    if name in ("Linear", "Embedding"):
        return first * second
    if name.startswith("Conv") and name[-2:] in ("1d", "2d", "3d"):
        width = size(2, "kernel_size")
        return None if width is None else first * second * width ** int(name[-2])
    if name in _GATES:
        return _GATES[name] * second * (first + second) * (size(2, "num_layers") or 1)
    return None
