import jax, jax.numpy as jnp

history = []


@jax.jit
def step(p, x):
    g = jax.grad(lambda p: ((x @ p) ** 2).mean())(p)
    return p - 0.1 * g, (x @ p)


p = jnp.zeros((1000, 1000))
for i in range(1000):
    p, out = step(p, jnp.ones((64, 1000)))
    history.append(out)  # hint: outputs-kept-on-card
