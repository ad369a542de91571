"""Arrays that become constants of a compiled program."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

images = jnp.asarray(np.load("images.npy"))
table = jax.device_put(np.loadtxt("table.txt"))
codes = np.load("codes.npy")


@jax.jit
def step(params, at):
    x = jax.lax.dynamic_slice_in_dim(images, at, 64)  # expect: jit-captures-array
    grads = jax.grad(lambda p: jnp.square(x @ p).mean())(params)
    return params - 0.1 * grads


@partial(jax.jit, static_argnames="size")
def draw(key, size):
    rows = jax.random.choice(key, table, (size,))  # expect: jit-captures-array
    return rows - rows.mean(0)


def nearest(query):
    return jnp.square(codes - query).sum(-1).argmin()  # expect: jit-captures-array


nearest_fast = jax.jit(nearest)
params = jnp.zeros((images.shape[1], 1))
for i in range(1000):
    params = step(params, i)
    found = nearest_fast(draw(jax.random.key(i), 32)[0])


@jax.jit
def step_clean(params_clean, images, at):
    x = jax.lax.dynamic_slice_in_dim(images, at, 64)
    grads = jax.grad(lambda p: jnp.square(x @ p).mean())(params_clean)
    return params_clean - 0.1 * grads


@partial(jax.jit, static_argnames="size")
def draw_clean(key, table, size):
    rows = jax.random.choice(key, table, (size,))
    return rows - rows.mean(0)


def mean_picture():
    """Not compiled: it reads the array where it lies."""
    return images.mean(0)


params_clean = jnp.zeros((images.shape[1], 1))
for i_clean in range(1000):
    params_clean = step_clean(params_clean, images, i_clean)
    rows = draw_clean(jax.random.key(i_clean), table, 32)
