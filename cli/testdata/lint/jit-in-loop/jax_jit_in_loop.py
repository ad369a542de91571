import jax
import jax.numpy as jnp


def loss_fn(w, x):
    return jnp.mean((x @ w) ** 2)


def train(batches, w):
    for x in batches:
        step = jax.jit(jax.grad(loss_fn))  # expect: jit-in-loop
        w = w - 0.1 * step(w, x)
    return w


def train_clean(batches, w):
    step = jax.jit(jax.grad(loss_fn))
    for x in batches:
        w = w - 0.1 * step(w, x)
    return w
