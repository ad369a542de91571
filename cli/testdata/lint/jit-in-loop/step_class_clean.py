"""A class that compiles its step when it is made."""

import jax
import jax.numpy as jnp


class Trainer:
    def __init__(self, loss_fn, rate):
        self.rate = rate
        self.gradient = jax.jit(jax.grad(loss_fn))

    def fit(self, weights, batches):
        for x, y in batches:
            weights = weights - self.rate * self.gradient(weights, x, y)
        return weights


def evaluate(weights, batches):
    error = jax.jit(lambda w, x, y: jnp.square(x @ w - y).mean())
    return [float(error(weights, x, y)) for x, y in batches]
