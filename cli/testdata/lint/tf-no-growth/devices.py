"""A loop of one's own on a named card."""

import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(64), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01)


def train(batches):
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))


with tf.device("/GPU:0"):  # hint: tf-no-growth
    train(tf.data.TFRecordDataset("train.tfrecord").batch(32))
