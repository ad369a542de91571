"""A Keras model with a train_step of its own: a denoiser that draws its noise inside."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(6)


class Denoise(keras.Model):
    def __init__(self):
        super().__init__()
        self.stack = keras.Sequential(
            [layers.Conv2D(40, 3, padding="same", activation="swish") for _ in range(6)]
            + [layers.Conv2D(3, 3, padding="same")]
        )
        self.draw = keras.random.SeedGenerator(3)

    def call(self, x):
        return self.stack(x)

    def train_step(self, x):
        noise = keras.random.normal(tf.shape(x), seed=self.draw)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x + 0.3 * noise, training=True) - noise))
        found = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(found, self.trainable_variables))
        return {"loss": loss}


class Show(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("batch %d loss %.8g" % (batch, logs["loss"]), flush=True)


model = Denoise()
model.compile(keras.optimizers.Adam(1e-3))
x = np.random.default_rng(2).random((96, 48, 48, 3), dtype="float32")
model.fit(x, batch_size=24, epochs=1, shuffle=False, verbose=0, callbacks=[Show()])
