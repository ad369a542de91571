"""Where a tensor is kept with its graph.

severity: info
remedy: detach

What a caller hands over with its graph stays here as long as the container.

Instead: Keep a number: `float(value)`, or `value.detach()`. Or let the caller hand one over.
"""

from ..keeping import kept_outputs
from ..reasons import (
    adapting_function,
    cleared_by_function,
    loss_of_small_problem,
    volatile,
    without_torch,
)

CHECKS = (kept_outputs,)
HINTS = (
    without_torch,
    volatile,
    adapting_function,
    cleared_by_function,
    loss_of_small_problem,
)
