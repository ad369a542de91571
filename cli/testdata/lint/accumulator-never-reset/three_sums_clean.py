"""The same sums, set back to zero behind each update."""

import tensorflow as tf


def set_to_zero(held):
    for a in held:
        a.assign(tf.zeros_like(a))


def by_helper(model, optimizer, loss_fn, batches, every=8):
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]
    for step, (x, y) in enumerate(batches):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True)) / every
        grads = tape.gradient(loss, model.trainable_variables)
        for a, g in zip(sums, grads):
            a.assign_add(g)
        if (step + 1) % every == 0:
            optimizer.apply_gradients(zip(sums, model.trainable_variables))
            set_to_zero(sums)


class Trainer:
    def __init__(self, model, optimizer, every):
        self.model, self.optimizer, self.every = model, optimizer, every
        self.sums = [tf.Variable(tf.zeros_like(v)) for v in model.trainable_variables]

    def epoch(self, batches):
        for step, (x, y) in enumerate(batches):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
            grads = tape.gradient(loss, self.model.trainable_variables)
            for held, g in zip(self.sums, grads):
                held.assign_add(g / self.every)
            if (step + 1) % self.every == 0:
                self.optimizer.apply_gradients(zip(self.sums, self.model.trainable_variables))
                for held in self.sums:
                    held.assign(tf.zeros_like(held))


def plain_list(model, optimizer, batches, every=4):
    total = [tf.zeros_like(v) for v in model.trainable_variables]
    for step, (x, y) in enumerate(batches):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(model(x) - y)) / every
        grads = tape.gradient(loss, model.trainable_variables)
        total = [t + g for t, g in zip(total, grads)]
        if step % every == every - 1:
            optimizer.apply_gradients(zip(total, model.trainable_variables))
            total = [tf.zeros_like(v) for v in model.trainable_variables]
