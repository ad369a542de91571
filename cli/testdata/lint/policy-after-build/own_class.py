"""A model of a class of one's own, in a trainer."""

import tensorflow as tf


class Small(tf.keras.Model):
    def __init__(self, units):
        super().__init__()
        self.body = tf.keras.layers.Dense(units, activation="relu")

    def call(self, x):
        return self.body(x)


class Trainer:
    def __init__(self, units, half):
        self.model = Small(units)
        if half:
            policy = tf.keras.mixed_precision.Policy("mixed_float16")
            tf.keras.mixed_precision.set_global_policy(policy)  # expect: policy-after-build
        self.model.compile(tf.keras.optimizers.Adam(1e-3), "mse")

    def fit(self, dataset):
        return self.model.fit(dataset, epochs=10)
