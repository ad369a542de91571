import tensorflow as tf


class L(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.d = tf.keras.layers.Dense(10)

    def call(self, x):
        y = self.d(x)
        self.activation_map = y  # hint: layer-keeps-tensors
        return y


model = tf.keras.Sequential([L()])
model.compile("adam", "mse")
model.fit(x, y)
