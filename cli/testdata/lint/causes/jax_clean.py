from functools import partial

import jax
import jax.numpy as jnp
import optax

seen = []


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss, jnp.tanh(batch)


for batch in loader:
    params, opt_state, loss, out = train_step(params, opt_state, batch)
    seen.append(jax.device_get(out))
