import jax
import jax.numpy as jnp
from elsewhere import init, make_loss, stream

params = init()
for step in range(10000):
    x, y = next(stream)
    f = jax.jit(lambda p, a, b: jnp.mean((a @ p - b) ** 2) / (step + 1))  # expect: jit-in-loop
    print(f(params, x, y))

for epoch, batch in enumerate(stream):
    update = jax.jit(jax.value_and_grad(make_loss(epoch)))  # expect: jit-in-loop
    value, grads = update(params, batch)
    params = params - 0.1 * grads

for width in range(1, 5):  # one program for each width, and that is meant
    g = jax.jit(lambda a: jnp.tile(a, width))
    g(params)
