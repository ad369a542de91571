"""The same programs with their arrays as arguments."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

images = jnp.asarray(np.load("images.npy"))
table = jax.device_put(np.loadtxt("table.txt"))


@jax.jit
def step(params, images, at):
    x = jax.lax.dynamic_slice_in_dim(images, at, 64)
    grads = jax.grad(lambda p: jnp.square(x @ p).mean())(params)
    return params - 0.1 * grads


@partial(jax.jit, static_argnames="size")
def draw(key, table, size):
    rows = jax.random.choice(key, table, (size,))
    return rows - rows.mean(0)


def mean_picture():
    """Not compiled: it reads the array where it lies."""
    return images.mean(0)


params = jnp.zeros((images.shape[1], 1))
for i in range(1000):
    params = step(params, images, i)
    rows = draw(jax.random.key(i), table, 32)
