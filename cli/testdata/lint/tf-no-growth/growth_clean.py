"""Each card grows as it is needed."""

import tensorflow as tf

for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)

model = tf.keras.applications.MobileNetV2(weights=None, classes=10)
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(tf.keras.utils.image_dataset_from_directory("train"), epochs=3)
