"""Operations that are built once, and run in the loop."""

import tensorflow as tf


class Trainer:
    def __init__(self, sess, train_op, loss):
        self.sess, self.train_op = sess, train_op
        self.mean = tf.reduce_mean(loss)

    def fit(self, batches, feed):
        for x, y in batches:
            _, value = self.sess.run([self.train_op, self.mean], feed(x, y))
            print(value)


def with_updates(session, train_op, weights, averages, steps):
    copy = tf.group(*[tf.assign(a, w) for a, w in zip(averages, weights)])
    tf.get_default_graph().finalize()
    for step in range(steps):
        session.run(train_op)
        if step % 100 == 0:
            session.run(copy)


def pictures(sess, files):
    name = tf.placeholder(tf.string)
    picture = tf.image.decode_png(tf.read_file(name))
    for file in files:
        yield sess.run(picture, {name: file})
