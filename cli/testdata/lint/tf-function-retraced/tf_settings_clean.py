"""The same numbers as tensors, and numbers that do not change."""

import argparse

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--warmup_steps", type=int, default=10000)
parser.add_argument("--max_norm", type=float, default=1.0)
args = parser.parse_args()


class Annealed:
    def __init__(self, model, total_steps):
        self.model = model
        self.total_steps = tf.Variable(total_steps, dtype=tf.float32)
        self.done = tf.Variable(0.0)

    @tf.function
    def step(self, x, beta):
        return tf.reduce_mean(self.model(x, training=True)) * beta

    def fit(self, dataset, epochs):
        for _ in range(epochs):
            for x in dataset:
                beta = tf.minimum(1.0, self.done / self.total_steps)
                self.step(x, beta)
                self.done.assign_add(1.0)


@tf.function
def update(model, x, rate, norm):
    return tf.clip_by_norm(tf.reduce_mean(model(x, training=True)) * rate, norm)


def warmed_up(model, dataset):
    for i, x in enumerate(dataset):
        rate = tf.constant(1e-3 * min(1.0, (i + 1) / args.warmup_steps))
        update(model, x, rate, args.max_norm / 2)
