"""Sums of gradients that begin at zero in every micro-step."""

import tensorflow as tf


def in_a_loop(model, optimizer, batches, every=4):
    for step, (x, y) in enumerate(batches):
        sums = [  # expect: accumulator-recreated
            tf.zeros_like(v) for v in model.trainable_variables
        ]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y)) / every
        grads = tape.gradient(loss, model.trainable_variables)
        sums = [s + g for s, g in zip(sums, grads)]
        if (step + 1) % every == 0:
            optimizer.apply_gradients(zip(sums, model.trainable_variables))


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self.model(x, training=True) - y))
        return tape.gradient(loss, self.model.trainable_variables)

    def epoch(self, batches, every):
        weights = self.model.trainable_variables
        for step, (x, y) in enumerate(batches):
            held = [  # expect: accumulator-recreated
                tf.Variable(tf.zeros(w.shape)) for w in weights
            ]
            for a, g in zip(held, self.gradients(x, y)):
                a.assign_add(g / every)
            if (step + 1) % every == 0:
                self.optimizer.apply_gradients(zip(held, weights))


def grads_of(model, batch):
    with tf.GradientTape() as tape:
        loss = model(batch)
    return tape.gradient(loss, model.trainable_variables)


def in_epochs(model, optimizer, dataset, epochs, every):
    for epoch in range(epochs):
        for step, batch in enumerate(dataset):
            acc = list(map(tf.zeros_like, model.trainable_variables))
            acc = [tf.zeros_like(a) for a in acc]  # expect: accumulator-recreated
            acc = [a + g / every for a, g in zip(acc, grads_of(model, batch))]
            if step % every == every - 1:
                optimizer.apply_gradients(zip(acc, model.trainable_variables))
        print("epoch", epoch)
