"""A static argument that changes in every round compiles the function each time."""

from functools import partial

import jax
from elsewhere import batches, init


@partial(jax.jit, static_argnums=(2,))  # expect: jit-static-changes
def decayed(params, x, decay):
    return params * decay + x


@partial(jax.jit, static_argnames=("depth",))
def deep(params, x, depth):
    for _ in range(depth):
        x = params @ x
    return x


@jax.jit
def traced(params, x, rate):
    return params - rate * x


params = init()
for step, x in enumerate(batches):
    params = decayed(params, x, 1.0 / (step + 1))
    params = deep(params, x, depth=3)
    params = traced(params, x, 0.1 / (step + 1))
