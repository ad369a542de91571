"""Buffers of tf.data."""
import tensorflow as tf


def decode(path):
    return tf.io.decode_jpeg(tf.io.read_file(path))


def decoded():
    ds = tf.data.Dataset.list_files("/data/*.jpg")
    ds = ds.map(decode)
    ds = ds.cache()  # expect: tf-data-buffers
    ds = ds.shuffle(buffer_size=len(ds))  # expect: tf-data-buffers
    return ds.batch(32).prefetch(2)


def records(files):
    return tf.data.TFRecordDataset(files).map(decode).shuffle(100000).batch(32)  # expect: tf-data-buffers


def batched(files):
    return tf.data.TFRecordDataset(files).batch(64).shuffle(5000)  # expect: tf-data-buffers


def right(files):
    ds = tf.data.Dataset.from_tensor_slices(files).shuffle(100000)
    ds = ds.map(decode).cache("/scratch/cache").shuffle(1000)
    return ds.batch(32).prefetch(2)
