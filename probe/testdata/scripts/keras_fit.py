"""Keras' fit on the CPU, with validation and dropout. Prints each epoch's losses exactly."""

import numpy
import tensorflow as tf

tf.keras.utils.set_random_seed(7)
tf.config.experimental.enable_op_determinism()
x, y = numpy.random.rand(640, 16).astype("float32"), numpy.random.randint(0, 4, 640)
model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dropout(0.1), tf.keras.layers.Dense(4)])
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x, y, batch_size=64, epochs=2, verbose=0, validation_data=(x[:64], y[:64]))
print([value.hex() for key in sorted(history.history) for value in history.history[key]])
