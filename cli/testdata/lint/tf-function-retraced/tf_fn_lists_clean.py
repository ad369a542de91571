"""Tf fn lists, done right."""

import tensorflow as tf


@tf.function
def update(values):
    return tf.reduce_sum(values)


def loop(stream):
    for v in stream:
        update(v)
