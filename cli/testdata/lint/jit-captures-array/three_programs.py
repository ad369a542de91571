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
