"""Steps that write over their state, and one that only reads it."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

tx = optax.adam(1e-3)


def loss_fn(params, batch):
    return jnp.square(batch["x"] @ params["w"] - batch["y"]).mean()


@partial(jax.jit, donate_argnums=0)
def flax_step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
    return state.apply_gradients(grads=grads), loss


def fit_flax(state, batches):
    for batch in batches:
        state, loss = flax_step(state, batch)
    return state


@partial(jax.jit, donate_argnames=("params", "opt_state"))
def optax_step(params, opt_state, batch):
    updates, opt_state = tx.update(jax.grad(loss_fn)(params, batch), opt_state, params)
    return optax.apply_updates(params, updates), opt_state


class Trainer:
    def __init__(self, params):
        self.params, self.opt_state = params, tx.init(params)

    def fit(self, batches):
        for batch in batches:
            self.params, self.opt_state = optax_step(self.params, self.opt_state, batch)


@jax.jit
def evaluate(params, batch):
    return loss_fn(params, batch)
