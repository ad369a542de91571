"""A tf.function that another one traces is traced with it, once: a window of steps, a Keras model's
own step, a function that is handed to tf.function or to a dataset.
"""

import tensorflow as tf

net = tf.keras.Sequential([tf.keras.layers.Dense(64), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam()


@tf.function
def step(x, y, k):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(x) - y) ** 2) * k
    weights = net.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss


@tf.function
def window(xs, ys):
    total = 0.0
    for k in range(64):
        total += step(xs[k], ys[k], k)
    return total


class Solver(tf.keras.Model):
    def train_step(self, batch):
        x, y = batch
        for _ in range(200):

            @tf.function
            def residual(z):  # hint: tf-function-retraced
                return net(z) - y

            x = x - 0.1 * residual(x)
        return {"loss": tf.reduce_mean(x)}


@tf.function
def cell(x, t):
    return net(x) * t


def unroll(x):
    for t in range(128):
        x = cell(x, t)  # hint: tf-function-retraced
    return x


compiled = tf.function(unroll)


def plainly(x):
    for t in range(128):
        x = cell(x, t)  # expect: tf-function-retraced
    return x


def main(batches):
    for xs, ys in batches:
        window(xs, ys)
        compiled(xs)
    return plainly(xs)
