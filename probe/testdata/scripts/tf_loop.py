"""TensorFlow loops of one's own on the CPU: eager, then compiled. Prints the losses exactly."""

import tensorflow as tf

tf.keras.utils.set_random_seed(7)
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam()


def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


x, y = tf.random.normal((32, 4)), tf.random.normal((32, 1))
print([float(step(x, y)).hex() for _ in range(6)])
compiled = tf.function(step)
print([float(compiled(x, y)).hex() for _ in range(9)])
