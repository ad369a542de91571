"""Rollout that builds a graph.

severity: warning
remedy: no_grad

What is collected here is used as it is. Its graphs, with the activations of every step, stay
until the buffer is emptied.

Instead: Act under `with torch.no_grad():`. The update runs the model again, with gradients.
"""

from ..reasons import before_a_step

HINTS = (before_a_step,)
