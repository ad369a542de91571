"""A tensor times the loop's counter is a tensor; a flag has two values; neither is traced again and
again.
"""

import tensorflow as tf
from settings import config


@tf.function
def one_step(net, x, level, flag):
    return x + net([x, level]) if flag else net([x, level])


def sample(net, x, sigmas, rounds=100):
    for i, sigma in enumerate(sigmas):
        level = tf.ones(x.shape[0]) * i
        for _ in range(rounds):
            x = one_step(net, x, level, i % 2 == 0)  # hint: tf-function-retraced
    return x


def anneal(net, batches):
    for i, x in enumerate(batches):
        one_step(net, x, config.level * i, True)  # expect: tf-function-retraced
