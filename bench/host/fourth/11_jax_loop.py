"""A deep network in JAX: jit, value_and_grad, Adam written out."""

import jax
import jax.numpy as jnp

WIDTH, DEPTH = 512, 24


def make(key):
    keys = jax.random.split(key, DEPTH)
    return [
        {"w": jax.random.normal(k, (WIDTH, WIDTH)) * (2 / WIDTH) ** 0.5, "b": jnp.zeros(WIDTH)}
        for k in keys
    ]


def block(layer, x):
    return x + 0.2 * jax.nn.gelu(x @ layer["w"] + layer["b"])


def loss_of(params, x, y):
    for layer in params:
        x = block(layer, x)
    return jnp.mean((x - y) ** 2)


@jax.jit
def step(params, first, second, count, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, grads)
    params = jax.tree.map(
        lambda p, m, v: (
            p - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)
        ),
        params,
        first,
        second,
    )
    return params, first, second, loss


params = make(jax.random.key(0))
first = jax.tree.map(jnp.zeros_like, params)
second = jax.tree.map(jnp.zeros_like, params)
for i in range(4):
    a, b = jax.random.split(jax.random.key(i + 1))
    x, y = jax.random.normal(a, (4096, WIDTH)), jax.random.normal(b, (4096, WIDTH))
    params, first, second, loss = step(params, first, second, i + 1, x, y)
    print("step %d loss %.8g" % (i, float(loss)), flush=True)
