"""A distributed step that gets the annealed weight as a Python number."""

import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    net = tf.keras.Sequential([tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.Adam()


def replica(x, y, weight):
    with tf.GradientTape() as tape:
        loss = weight * tf.reduce_mean(tf.square(net(x) - y))
    grads = tape.gradient(loss, net.trainable_variables)
    optimizer.apply_gradients(zip(grads, net.trainable_variables))
    return loss


@tf.function
def step(x, y, weight):
    return strategy.run(replica, args=(x, y, weight))


def train(dataset, steps):
    weight = 1.0
    for i, (x, y) in enumerate(dataset.take(steps)):
        step(x, y, weight)  # expect: tf-function-retraced
        weight = max(0.1, weight * 0.9995)
