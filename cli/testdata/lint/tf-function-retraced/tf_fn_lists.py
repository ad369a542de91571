"""Tf fn lists: one mistake, and its right twin beside it."""

import tensorflow as tf


@tf.function
def update(values):
    return tf.add_n(values)


def loop(stream):
    seen = []
    for v in stream:
        seen.append(v)
        update(seen)  # expect: tf-function-retraced
