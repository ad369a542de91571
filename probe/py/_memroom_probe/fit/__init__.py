"""Applies remedies inside the user's process. Entry: install(remedies, say).

A remedy is {"id": ..., "params": {...}}. say(kind, text, **fields) tells what was done: kind is
"applied", "declined" or "note", fields carry the remedy's id and figures. Nothing is imported
before the user imports it, and a remedy that cannot be had is declined with the reason while
training goes on without it.
"""

import sys

from .. import imports

# What no remedy of ours reaches, with what its users can write.
JAX = (
    "JAX programs are compiled as a whole, so nothing is changed from outside. What helps in the "
    "script: jax.checkpoint(block) around each block; jax.jit(step, donate_argnums=(0, 1)), so "
    "that new parameters and optimizer state take the place of the old ones; "
    "optax.MultiSteps(optimizer, 4) with a quarter of the batch. Beside other programs: "
    "XLA_PYTHON_CLIENT_PREALLOCATE=false"
)


def install(remedies, say):
    done = []

    def with_torch(_):
        if "torch" not in done:  # a reload must not put everything in place twice
            done.append("torch")
            from . import registry

            registry.apply(remedies, say)

    def with_keras(keras):
        if "keras" not in done:
            done.append("keras")
            from .remedies import of_keras

            of_keras.apply(keras, remedies, say)

    def with_jax(_):
        # Libraries for several frameworks import it too: then torch is there already.
        if "jax" not in done and "torch" not in sys.modules:
            done.append("jax")
            say("declined", JAX, id="framework")

    imports.when_imported("jax", with_jax)
    imports.when_imported("torch", with_torch)
    imports.when_imported("keras", with_keras)
