"""A class that looks for cards when it is made."""

import tensorflow as tf


class Trainer:
    def __init__(self, model):
        self.cards = tf.config.experimental.list_physical_devices("GPU")  # hint: tf-no-growth
        if not self.cards:
            raise SystemExit("no card")
        self.model = model
        self.model.compile("adam", "mse")

    def fit(self, dataset):
        self.model.fit(dataset, epochs=10)


if __name__ == "__main__":
    Trainer(tf.keras.Sequential([tf.keras.layers.Dense(1)])).fit(
        tf.data.TFRecordDataset("train.tfrecord").batch(64)
    )
