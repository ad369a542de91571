from functools import partial

import jax
import jax.numpy as jnp
from elsewhere import batches, init


@partial(jax.jit, static_argnames=("rate",))  # expect: jit-static-changes
def step(params, x, rate):
    return params - rate * x


@partial(jax.jit, static_argnames=("training",))
def predict(params, x, training):
    return params @ x if training else x


def update(params, x, scale):
    return params * scale + x


fast_update = jax.jit(update, static_argnums=(2,))  # expect: jit-static-changes

params = init()
for i, x in enumerate(batches):
    rate = 1.0 / (1 + i)
    params = step(params, x, rate)
    params = fast_update(params, x, 0.9**i)
    params = predict(params, x, training=i % 2 == 0)
    print(jnp.sum(params))
