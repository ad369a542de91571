"""Keras' fit on arrays: residual one-dimensional convolutions, a validation split, AdamW."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(5)
entry = keras.Input((600, 4))
x = layers.Conv1D(48, 7, padding="same")(entry)
for _ in range(5):
    y = layers.LayerNormalization()(x)
    y = layers.Conv1D(96, 5, padding="same", activation="gelu")(y)
    x = layers.Add()([x, layers.Conv1D(48, 1)(y)])
x = layers.GlobalAveragePooling1D()(x)
model = keras.Model(entry, layers.Dense(6)(x))
model.compile(
    keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
x = np.random.default_rng(0).normal(size=(192, 600, 4)).astype("float32")
y = np.random.default_rng(1).integers(0, 6, 192)


class Show(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch %d loss %.8g" % (epoch, logs["loss"]), flush=True)


model.fit(x, y, batch_size=64, epochs=3, shuffle=False, verbose=0, callbacks=[Show()])
print("test loss %.8g" % model.evaluate(x, y, batch_size=64, verbose=0))
