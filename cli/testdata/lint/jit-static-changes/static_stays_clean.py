"""Static arguments that stay as they are, and a rate that is an array."""

from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, static_argnames=("heads",))
def attend(weights, x, heads):
    parts = (x @ weights).reshape(len(x), heads, -1)
    return jax.nn.softmax(parts, axis=-1)


@jax.jit
def decay(weights, grads, rate):
    return weights - rate * grads


def train(weights, batches, heads):
    for step, (x, grads) in enumerate(batches):
        x = attend(weights, x, heads)
        weights = decay(weights, grads, jnp.asarray(0.1 / (step + 1)))
    return weights
