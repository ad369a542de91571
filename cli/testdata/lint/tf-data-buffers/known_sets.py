"""Sets whose size is known: a buffer cannot hold more than there is."""

import tensorflow as tf

(x, y), _ = tf.keras.datasets.mnist.load_data()


def scale(image, label):
    return tf.image.resize(image[..., None], (28, 28)) / 255.0, label


digits = tf.data.Dataset.from_tensor_slices((x, y)).map(scale)
shuffled = digits.shuffle(60000).batch(32)  # hint: tf-data-buffers
kept = digits.cache().batch(32)  # hint: tf-data-buffers
