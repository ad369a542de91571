"""Keras models as people write them. Nothing of them may be trained: the last line would say so."""
import sys

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

kind, batch = sys.argv[1], int(sys.argv[2])
images, labels = np.zeros((2 * batch, 32, 32, 3), "float32"), np.zeros((2 * batch,), "int64")
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
if kind == "sequential":
    model = tf.keras.Sequential([tf.keras.Input((32, 32, 3)), layers.Conv2D(16, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
                                 layers.BatchNormalization(), layers.Flatten(), layers.Dropout(0.5), layers.Dense(10)])
elif kind == "unbuilt":
    model = tf.keras.Sequential([layers.Flatten(), layers.Dense(32, activation="relu"), layers.Dense(10)])
elif kind == "functional":
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    inputs = tf.keras.Input((32, 32, 3))
    x = skip = layers.Conv2D(16, 3, padding="same")(inputs)
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = layers.Add()([x, skip])
    model = tf.keras.Model(inputs, layers.Dense(10, dtype="float32")(layers.GlobalAveragePooling2D()(x)))
elif kind == "lstm":
    images = np.zeros((2 * batch, 20), "int64")
    model = tf.keras.Sequential([tf.keras.Input((20,)), layers.Embedding(100, 16), layers.LSTM(32), layers.Dense(10)])
elif kind == "session":
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", (3, 1))
        step = tf.compat.v1.train.AdamOptimizer().minimize(tf.reduce_sum(images @ weight))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step)
    sys.exit("trained")
else:  # a loop of one's own
    model = tf.keras.Sequential([layers.Flatten(), layers.Dense(32, activation="relu"), layers.Dense(10)])
    optimizer = tf.keras.optimizers.Adam()

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        if kind == "loop-asks" and value.numpy() > 1e6:
            return value
        gradients = tape.gradient(value, model.trainable_variables)
        if kind != "loop-idle":
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return value

    step = tf.function(step) if kind == "loop-function" else step
    for x, y in tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch):
        print("trained", step(x, y).numpy())
    sys.exit()
model.compile("adam", loss, metrics=["accuracy"])
model.fit(images, labels, batch_size=batch, epochs=2, validation_split=0.5, verbose=0)
sys.exit("trained")
