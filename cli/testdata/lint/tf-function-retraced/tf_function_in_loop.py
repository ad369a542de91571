# ruff: noqa: B023
"""Tf function in loop: one mistake, and its right twin beside it."""

import tensorflow as tf


def train(models, ds, opt):
    for m in models:
        for x, y in ds:

            @tf.function
            def go(a, b):  # expect: tf-function-retraced
                with tf.GradientTape() as t:
                    fit = tf.reduce_mean((m(a) - b) ** 2)
                opt.apply_gradients(
                    zip(t.gradient(fit, m.trainable_variables), m.trainable_variables)
                )

            go(x, y)
