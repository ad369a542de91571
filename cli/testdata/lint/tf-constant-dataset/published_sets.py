"""Published sets have a known size; a table of faces is no dataset; a setting is no sample."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds


def pictures():
    data = tfds.load("horses_or_humans", split="train", as_supervised=True)
    data = data.map(lambda image, label: (tf.image.resize(image, (150, 150)), label))
    return data.cache().shuffle(100).batch(8)  # hint: tf-data-buffers


def mesh(path):
    faces = np.load(path)
    return tf.constant(faces)  # hint: tf-constant-dataset


def everything(path):
    images = np.load(path)
    return tf.constant(images)  # expect: tf-constant-dataset


def with_each_gain(model, clips, settings, gains):
    for setting in settings:
        for gain in gains:
            model.load_weights(setting)
            out = model.predict(clips)  # hint: keras-predict-in-loop
            print(setting, gain, out.mean())
