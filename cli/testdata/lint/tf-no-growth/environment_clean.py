"""The environment says so before TensorFlow starts."""

import os

os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"

import tensorflow as tf


def main():
    with tf.device("/GPU:0"):
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(tf.data.TFRecordDataset("train.tfrecord").batch(64))


main()
