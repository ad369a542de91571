"""A part of the card, written down."""

import tensorflow as tf


class Trainer:
    def __init__(self, model, mib):
        card = tf.config.list_physical_devices("GPU")[0]
        part = tf.config.LogicalDeviceConfiguration(memory_limit=mib)
        tf.config.set_logical_device_configuration(card, [part])
        self.model = model

    def fit(self, dataset):
        self.model.compile("adam", "mse")
        self.model.fit(dataset)
