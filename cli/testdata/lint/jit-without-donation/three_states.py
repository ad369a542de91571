"""Steps of JAX that return a new state beside the old one."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

tx = optax.adam(1e-3)


def loss_fn(params, batch):
    return jnp.square(batch["x"] @ params["w"] - batch["y"]).mean()


@jax.jit
def flax_step(state, batch):  # hint: jit-without-donation
    loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
    return state.apply_gradients(grads=grads), loss


def fit_flax(state, batches):
    for batch in batches:
        state, loss = flax_step(state, batch)
    return state


@partial(jax.jit, static_argnames="clip")
def optax_step(params, opt_state, batch, clip):  # hint: jit-without-donation
    grads = jax.grad(loss_fn)(params, batch)
    grads = jax.tree.map(lambda g: jnp.clip(g, -clip, clip), grads)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


class Trainer:
    def __init__(self, params):
        self.params, self.opt_state = params, tx.init(params)

    def fit(self, batches):
        for batch in batches:
            self.params, self.opt_state = optax_step(self.params, self.opt_state, batch, 1.0)


def update(params, opt_state, batch):  # hint: jit-without-donation
    updates, opt_state = tx.update(jax.grad(loss_fn)(params, batch), opt_state)
    return optax.apply_updates(params, updates), opt_state


def fit_plain(params, batches):
    run = jax.jit(update)
    opt_state = tx.init(params)
    for batch in batches:
        params, opt_state = run(params, opt_state, batch)
    return params


@partial(jax.jit, donate_argnums=0)
def flax_step_clean(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
    return state.apply_gradients(grads=grads), loss


def fit_flax_clean(state, batches):
    for batch in batches:
        state, loss = flax_step_clean(state, batch)
    return state


@partial(jax.jit, donate_argnames=("params", "opt_state"))
def optax_step_clean(params, opt_state, batch):
    updates, opt_state = tx.update(jax.grad(loss_fn)(params, batch), opt_state, params)
    return optax.apply_updates(params, updates), opt_state


class TrainerClean:
    def __init__(self, params):
        self.params, self.opt_state = params, tx.init(params)

    def fit(self, batches):
        for batch in batches:
            self.params, self.opt_state = optax_step_clean(self.params, self.opt_state, batch)


@jax.jit
def evaluate(params, batch):
    return loss_fn(params, batch)
