"""Loss handed to a meter with its graph.

severity: hint
remedy: detach

A meter that adds up tensors keeps the graph of every iteration until it is reset. Whether this
one does is in another file.

Instead: Hand over a number: `meter.update(loss.item())`.
"""

from ..keeping import kept_outputs

CHECKS = (kept_outputs,)
