"""A loop of one's own in TensorFlow that keeps what each step makes."""

import tensorflow as tf

network = tf.keras.Sequential([tf.keras.layers.Dense(8)])
optimizer = tf.keras.optimizers.SGD(0.1)
slopes, answers, norms = [], [], []
for step in range(500):
    rows = tf.random.normal((64, 16))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(network(rows, training=True) ** 2)
    found = tape.gradient(loss, network.trainable_variables)
    optimizer.apply_gradients(zip(found, network.trainable_variables))
    slopes.append(found)  # hint: outputs-kept-on-card
    answers.append(network(rows))  # hint: outputs-kept-on-card
    norms.append(float(tf.linalg.global_norm(found)))
