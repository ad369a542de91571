"""Sums that are made once, or anew only behind an update."""

import tensorflow as tf


def before_the_loop(model, optimizer, batches, every=4):
    sums = [tf.zeros_like(v) for v in model.trainable_variables]
    for step, (x, y) in enumerate(batches):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y)) / every
        grads = tape.gradient(loss, model.trainable_variables)
        sums = [s + g for s, g in zip(sums, grads)]
        if (step + 1) % every == 0:
            optimizer.apply_gradients(zip(sums, model.trainable_variables))
            sums = [tf.zeros_like(v) for v in model.trainable_variables]


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.held = [tf.Variable(tf.zeros(w.shape)) for w in model.trainable_variables]

    def epoch(self, batches, every):
        for step, (x, y) in enumerate(batches):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.abs(self.model(x, training=True) - y)) / every
            grads = tape.gradient(loss, self.model.trainable_variables)
            for a, g in zip(self.held, grads):
                a.assign_add(g)
            if (step + 1) % every == 0:
                self.optimizer.apply_gradients(zip(self.held, self.model.trainable_variables))
                for a in self.held:
                    a.assign(tf.zeros_like(a))


def every_step(model, optimizer, batches):
    """No window: an update of each batch, and a state that begins at zero with it."""
    for x, y in batches:
        state = tf.zeros([x.shape[0], 128])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model([x, state]) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
