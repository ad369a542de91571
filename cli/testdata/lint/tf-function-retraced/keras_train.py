"""TensorFlow habits."""
import numpy as np
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")  # hint: tf-no-growth
images = np.load("images.npy")  # hint: dataset-read-whole
mapped = np.load("labels.npy", mmap_mode="r")
whole = tf.constant(images)  # expect: tf-constant-dataset
dataset = tf.data.Dataset.from_tensor_slices((images, mapped))  # expect: tf-dataset-from-array
names = tf.data.Dataset.from_tensor_slices(["a.png", "b.png"])


@tf.function
def step(batch, number):
    return tf.reduce_sum(batch) + number


def train(model, batches):
    for i, batch in enumerate(batches):
        step(batch, i)  # expect: tf-function-retraced
        step(batch, tf.constant(i))
    for batch in batches:
        fast = tf.function(model)  # expect: tf-function-retraced
        fast(batch)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)  # hint: tflite-does-not-train
    converter.convert()
    model.fit(dataset)
