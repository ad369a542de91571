"""TensorFlow 1: a graph that grows."""

import tensorflow as tf


def decay(sess, rate, train_op, steps):
    for i in range(steps):
        sess.run(train_op)
        sess.run(tf.assign(rate, 0.1 / (1 + i)))  # expect: tf-graph-grows


def decay_clean(sess, rate, train_op, steps):
    given = tf.placeholder(tf.float32)
    set_rate = tf.assign(rate, given)
    for i in range(steps):
        sess.run(train_op)
        sess.run(set_rate, {given: 0.1 / (1 + i)})
    for _ in range(steps):
        sess.run(tf.global_variables_initializer())
