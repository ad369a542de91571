"""Datasets that read as they go: from a mapped array, from records, from a folder."""

import numpy as np
import tensorflow as tf


def of_mapped(path):
    pixels = np.load(path, mmap_mode="r")
    shape = tf.TensorSpec(pixels.shape[1:], tf.float32)
    return tf.data.Dataset.from_generator(lambda: iter(pixels), output_signature=shape).batch(32)


def of_records(paths, features):
    records = tf.data.TFRecordDataset(paths, num_parallel_reads=4)
    return records.map(lambda r: tf.io.parse_single_example(r, features)).batch(64)


def of_folder(folder, model):
    pictures = tf.keras.utils.image_dataset_from_directory(folder, batch_size=32)
    model.fit(pictures.prefetch(tf.data.AUTOTUNE), epochs=3)


class Names:
    """Paths are small: the pictures behind them are read one by one."""

    def __init__(self, paths):
        self.files = tf.data.Dataset.from_tensor_slices(paths)

    def batches(self, size):
        return self.files.map(tf.io.read_file).map(tf.io.decode_jpeg).batch(size)
