"""Keras, and a line that counts the cards."""

import tensorflow as tf

print("cards:", len(tf.config.list_physical_devices("GPU")))  # hint: tf-no-growth

model = tf.keras.applications.MobileNetV2(weights=None, classes=10)
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(tf.keras.utils.image_dataset_from_directory("train"), epochs=3)
