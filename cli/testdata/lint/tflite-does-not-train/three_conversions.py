"""Models that are converted and trained."""

import tensorflow as tf
from tensorflow import keras


def plain(dataset):
    model = keras.applications.EfficientNetB0(weights=None, classes=10)
    model.compile("adam", "sparse_categorical_crossentropy")
    converter = tf.lite.TFLiteConverter.from_keras_model(model)  # hint: tflite-does-not-train
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    small = converter.convert()
    model.fit(dataset, epochs=5)
    return small


class Trainer:
    def __init__(self, model):
        self.model = model

    def shrink_and_fit(self, dataset):
        lite = tf.lite.TFLiteConverter.from_keras_model(  # hint: tflite-does-not-train
            self.model
        ).convert()
        self.model.compile("adam", "mse")
        self.model.fit(dataset, epochs=2)
        return len(lite)


def save(model, path):
    converter = tf.lite.TFLiteConverter.from_keras_model(model)  # hint: tflite-does-not-train
    with open(path, "wb") as f:
        f.write(converter.convert())


def train_and_save(model, dataset, path):
    model.fit(dataset, epochs=10)
    save(model, path)
