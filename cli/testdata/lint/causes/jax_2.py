import jax, optax, jax.numpy as jnp


@jax.jit
def train_step(params, opt_state, batch):  # hint: jit-without-donation
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


for batch in loader:
    params, opt_state, loss = train_step(params, opt_state, batch)
