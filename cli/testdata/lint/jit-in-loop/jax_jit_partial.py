from functools import partial

import jax
import jax.numpy as jnp
from world import batches, init


def loss_fn(params, x, y, rate):
    return jnp.mean((x @ params["w"] - y) ** 2) * rate


params = init()

for i, (x, y) in enumerate(batches):
    grad = jax.jit(jax.grad(partial(loss_fn, rate=1.0 / (i + 1))))  # expect: jit-in-loop
    grads = grad(params, x, y)
    params = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads)
