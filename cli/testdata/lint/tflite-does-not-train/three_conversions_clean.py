"""A model that is saved is converted; training is made smaller by other means."""

import tensorflow as tf
from tensorflow import keras


def of_a_saved_model(folder, path):
    converter = tf.lite.TFLiteConverter.from_saved_model(folder)
    with open(path, "wb") as f:
        f.write(converter.convert())


def in_half(dataset):
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = keras.applications.EfficientNetB0(weights=None, classes=10)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(dataset, epochs=5)


class Reader:
    """A file for devices is run."""

    def __init__(self, path):
        self.interpreter = tf.lite.Interpreter(model_path=path)
        self.interpreter.allocate_tensors()

    def read(self, x):
        self.interpreter.set_tensor(self.interpreter.get_input_details()[0]["index"], x)
        self.interpreter.invoke()
