"""Tensors kept with their graph.

severity: error
remedy: detach

Each tensor keeps the graph it was computed with, and every activation that no backward has
freed. Memory grows with every iteration.

Instead: Keep `x.detach()`, or `x.item()` for a single number, or `x.detach().cpu()`. Average
weights under `torch.no_grad()`.
"""

from ..keeping import kept_outputs
from ..reasons import (
    adapting_function,
    before_a_step,
    grad_turned_off,
    loss_of_small_problem,
    read_first,
    volatile,
    without_torch,
)

CHECKS = (kept_outputs,)
HINTS = (
    without_torch,
    volatile,
    adapting_function,
    before_a_step,
    read_first,
    grad_turned_off,
    loss_of_small_problem,
)
