import jax, jax.numpy as jnp, numpy as np

rows = np.fromfile("train.bin", "float32").reshape(-1, 128)
data = jnp.asarray(rows)


@jax.jit
def step(p, i):
    x = jax.lax.dynamic_slice(data, (i, 0), (32, 128))  # expect: jit-captures-array
    return p - 0.1 * jax.grad(lambda p: ((x @ p) ** 2).mean())(p)


p = jnp.zeros((128, 1))
for i in range(1000):
    p = step(p, i)
