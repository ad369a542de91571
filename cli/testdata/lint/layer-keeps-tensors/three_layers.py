"""Layers that keep tensors, trained step by step."""

import tensorflow as tf


class Attention(tf.keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.query, self.key = tf.keras.layers.Dense(units), tf.keras.layers.Dense(units)
        self.maps = []

    def call(self, x):
        scores = tf.matmul(self.query(x), self.key(x), transpose_b=True)
        weights = tf.nn.softmax(scores)
        self.maps.append(weights)  # expect: layer-keeps-tensors
        return tf.matmul(weights, x)


class Encoder(tf.keras.Model):
    def __init__(self, width):
        super().__init__()
        self.body = tf.keras.layers.Dense(width)
        self.history, self.codes = [], None

    def call(self, x, training=False):
        code = self.body(x)
        if training:
            self.history.append(code)  # expect: layer-keeps-tensors
        self.codes = code  # hint: layer-keeps-tensors
        return tf.nn.relu(code)


class Noise(tf.keras.layers.Layer):
    def __init__(self, rate):
        super().__init__()
        self.rate, self.drawn = rate, []

    def call(self, x):
        noise = self.rate * tf.random.normal(tf.shape(x))
        self.drawn.append((x, noise))  # expect: layer-keeps-tensors
        return x + noise


def train(model, optimizer, batches):
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))


class AttentionClean(tf.keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.query, self.key = tf.keras.layers.Dense(units), tf.keras.layers.Dense(units)

    def call(self, x):
        scores = tf.matmul(self.query(x), self.key(x), transpose_b=True)
        weights = tf.nn.softmax(scores)
        return tf.matmul(weights, x), weights


class EncoderClean(tf.keras.Model):
    def __init__(self, width):
        super().__init__()
        self.body = tf.keras.layers.Dense(width)
        self.size = tf.keras.metrics.Mean()

    def call(self, x):
        code = self.body(x)
        self.size.update_state(tf.norm(code))
        return tf.nn.relu(code)


class Traced(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.kept = []

    def call(self, x):
        y = tf.nn.gelu(x)
        self.kept.append(y)
        return y

    def take(self):
        kept, self.kept = self.kept, []
        return kept
