"""Graphs of TensorFlow 1 that grow with the training."""

import tensorflow as tf


class Trainer:
    def __init__(self, sess, train_op, loss):
        self.sess, self.train_op, self.loss = sess, train_op, loss

    def fit(self, batches, feed):
        for x, y in batches:
            self.sess.run(self.train_op, feed(x, y))
            value = self.sess.run(tf.reduce_mean(self.loss), feed(x, y))  # expect: tf-graph-grows
            print(value)


def with_updates(session, train_op, weights, averages, steps):
    for step in range(steps):
        session.run(train_op)
        if step % 100 == 0:
            session.run(  # expect: tf-graph-grows
                [tf.assign(a, w) for a, w in zip(averages, weights)]
            )


def pictures(sess, files):
    for name in files:
        yield sess.run(tf.image.decode_png(tf.read_file(name)))  # expect: tf-graph-grows
