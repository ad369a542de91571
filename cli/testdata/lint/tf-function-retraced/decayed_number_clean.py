"""The same number as a tensor, or as one that never changes."""

import tensorflow as tf


class Policy:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.entropy_weight = 0.1
        self.clip = 0.2

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
        self.improve(states, returns, self.clip)
        return self.improve(states, returns, tf.constant(self.entropy_weight))


def learn(policy, episodes):
    noise = 1.0
    while episodes:
        states, returns = episodes.pop()
        noise = max(0.01, noise * 0.99)
        policy.improve(states, returns, tf.convert_to_tensor(noise))
