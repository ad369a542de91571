import jax, jax.numpy as jnp


@jax.jit
def step(p, x):
    gradient = jax.grad(lambda p: ((x @ p) ** 2).mean())(p)
    return p - 0.1 * gradient, x @ p


def train(p, batches):
    history = {}
    figures = dict()
    for i, x in enumerate(batches):
        p, out = step(p, x)
        history[i] = out  # hint: outputs-kept-on-card
        figures[i % 10] = out
    rows = []
    for i, x in enumerate(batches):
        p, out = step(p, x)
        rows.append({"step": i, "out": out})  # hint: outputs-kept-on-card
    return history, figures, rows
