"""A number that is decayed on the way into a tf.function: a trace for every value."""

import tensorflow as tf


class Policy:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.entropy_weight = 0.1

    @tf.function
    def improve(self, states, returns, weight):
        with tf.GradientTape() as tape:
            logits = self.net(states)
            loss = -tf.reduce_mean(returns * logits[:, 0]) - weight * tf.reduce_mean(logits**2)
        grads = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.net.trainable_variables))
        return loss

    def after_episode(self, states, returns):
        self.entropy_weight *= 0.999
        return self.improve(  # expect: tf-function-retraced
            states, returns, self.entropy_weight
        )


def learn(policy, episodes):
    noise = 1.0
    while episodes:
        states, returns = episodes.pop()
        noise = max(0.01, noise * 0.99)
        policy.improve(states, returns, noise)  # expect: tf-function-retraced
