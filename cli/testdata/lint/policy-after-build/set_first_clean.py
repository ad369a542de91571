"""The policy first, then the layers; and the way back to float32."""

import keras
import tensorflow as tf


def plain(dataset):
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    model = tf.keras.applications.ResNet50(weights=None, classes=10)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(dataset, epochs=5)


class Trainer:
    def __init__(self, half):
        if half:
            keras.mixed_precision.set_global_policy("mixed_bfloat16")
        self.model = keras.Sequential([keras.layers.Dense(512), keras.layers.Dense(10)])
        self.model.compile("adam", "mse")


def one_model_each(x, y):
    small = keras.Sequential([keras.layers.Dense(8)])
    small.compile("adam", "mse")
    small.fit(x, y)
    keras.mixed_precision.set_global_policy("mixed_float16")
    large = keras.Sequential([keras.layers.Dense(4096), keras.layers.Dense(8)])
    large.compile("adam", "mse")
    large.fit(x, y)


def back_to_single(x, y):
    model = keras.Sequential([keras.layers.Dense(8)])
    keras.mixed_precision.set_global_policy("float32")
    model.compile("adam", "mse")
    model.fit(x, y)
