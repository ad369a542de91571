"""Sums of gradients that are applied and go on growing."""

import tensorflow as tf


def variables(model, optimizer, loss_fn, batches, every=8):
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]
    for step, (x, y) in enumerate(batches):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True)) / every
        grads = tape.gradient(loss, model.trainable_variables)
        for i, g in enumerate(grads):
            sums[i].assign_add(g)  # expect: accumulator-never-reset
        if (step + 1) % every == 0:
            optimizer.apply_gradients(zip(sums, model.trainable_variables))


class Trainer:
    def __init__(self, model, optimizer, every):
        self.model, self.optimizer, self.every = model, optimizer, every
        self.sums = [tf.Variable(tf.zeros_like(v)) for v in model.trainable_variables]

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
        return tape.gradient(loss, self.model.trainable_variables)

    def epoch(self, batches):
        for step, (x, y) in enumerate(batches):
            grads = self.gradients(x, y)
            for held, g in zip(self.sums, grads):  # expect: accumulator-never-reset
                held.assign_add(g / self.every)
            if (step + 1) % self.every == 0:
                self.optimizer.apply_gradients(zip(self.sums, self.model.trainable_variables))


def plain_list(model, optimizer, batches, every=4):
    total = [tf.zeros_like(v) for v in model.trainable_variables]
    for step, (x, y) in enumerate(batches):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(model(x) - y)) / every
        grads = tape.gradient(loss, model.trainable_variables)
        total = [tf.add(t, g) for t, g in zip(total, grads)]  # expect: accumulator-never-reset
        if step % every == every - 1:
            optimizer.apply_gradients(zip(total, model.trainable_variables))
