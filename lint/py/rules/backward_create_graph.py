"""Gradients that keep their graph.

severity: warning
remedy: detach

With create_graph=True the gradients are part of a graph that refers to the parameters. The
cycle is not freed when the iteration ends.

Instead: Use `torch.autograd.grad(loss, parameters, create_graph=True)`, or set `p.grad = None`
after each use.
"""

from typing import Iterator

from ..findings import Finding, finding
from ..loops import backward_in_loops
from ..names import File, constant, keyword


def create_graph(file: File) -> Iterator[Finding]:
    """loss.backward(create_graph=True)"""
    for _, s, _, call in backward_in_loops(file):
        if constant(keyword(call, "create_graph")) is True:
            yield finding(
                "backward-create-graph",
                s,
                "backward(create_graph=True) gives every parameter a gradient with a graph: "
                "parameter and gradient refer to each other and are not freed",
            )


CHECKS = (create_graph,)
