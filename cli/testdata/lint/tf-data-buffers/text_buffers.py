"""Sentences are small when decoded, pictures are not."""

import tensorflow as tf


def sentences(lines, encode):
    texts = tf.data.Dataset.from_tensor_slices(lines).map(encode)
    return texts.shuffle(len(lines)).padded_batch(64)  # hint: tf-data-buffers
