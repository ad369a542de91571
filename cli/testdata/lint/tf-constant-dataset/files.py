"""A constant of a whole file is one more copy of it; a few numbers are none."""

import numpy as np
import tensorflow as tf


def samples(path):
    x = np.load(path)
    return tf.constant(x)  # expect: tf-constant-dataset


def images(path):
    pictures = np.load(path)
    return tf.constant(pictures, dtype=tf.float32)  # expect: tf-constant-dataset


def weights():
    return tf.constant([0.1, 0.9])


def of_shape(batch):
    return tf.constant(batch.shape[0])


def zeros():
    return tf.constant(np.zeros((3, 3)))
