"""A number reckoned from the settings of a run, handed to a tf.function in every step."""

import argparse

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--warmup_steps", type=int, default=10000)
args = parser.parse_args()


class Annealed:
    def __init__(self, model, total_steps):
        self.model = model
        self.total_steps = total_steps
        self.optimizer = tf.keras.optimizers.Adam()

    @tf.function
    def step(self, x, y, beta):
        with tf.GradientTape() as tape:
            logits, kl = self.model(x, training=True)
            loss = tf.reduce_mean((logits - y) ** 2) + beta * kl
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss

    def fit(self, dataset, epochs):
        done = 0
        for _ in range(epochs):
            for x, y in dataset:
                beta = min(1.0, done / self.total_steps)
                self.step(x, y, beta)  # expect: tf-function-retraced
                done += 1


@tf.function
def update(model, optimizer, x, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients([(rate * g, v) for g, v in zip(grads, model.trainable_variables)])


def warmed_up(model, optimizer, dataset):
    for i, x in enumerate(dataset):
        rate = 1e-3 * min(1.0, (i + 1) / args.warmup_steps)
        update(model, optimizer, x, rate)  # expect: tf-function-retraced
