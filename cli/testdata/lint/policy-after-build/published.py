"""A published network, and the policy below it."""

import tensorflow as tf
from tensorflow.keras import mixed_precision


def plain(dataset):
    model = tf.keras.applications.ResNet50(weights=None, classes=10)
    mixed_precision.set_global_policy("mixed_float16")  # expect: policy-after-build
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(dataset, epochs=5)
