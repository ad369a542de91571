"""Whole files that stay files, and constants of a few numbers."""

import numpy as np
import tensorflow as tf


def of_mapped(path, size):
    pixels = np.load(path, mmap_mode="r")
    for i in range(0, len(pixels), size):
        yield tf.constant(pixels[i : i + size])


class Normalized(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.mean = tf.constant([0.485, 0.456, 0.406])
        self.spread = tf.constant([0.229, 0.224, 0.225])

    def call(self, x):
        return (x - self.mean) / self.spread


def train(model, paths, read):
    files = tf.data.Dataset.from_tensor_slices(tf.constant(paths))
    model.compile("adam", "mse")
    model.fit(files.map(read).batch(32), epochs=3)
