import numpy as np
import tensorflow as tf

LATENT = 64


def encoder():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((64, 64, 1)),
            tf.keras.layers.Conv2D(32, 3, 2, "same", activation="relu"),
            tf.keras.layers.Conv2D(64, 3, 2, "same", activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(2 * LATENT),
        ]
    )


def decoder():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((LATENT,)),
            tf.keras.layers.Dense(16 * 16 * 64, activation="relu"),
            tf.keras.layers.Reshape((16, 16, 64)),
            tf.keras.layers.Conv2DTranspose(32, 3, 2, "same", activation="relu"),
            tf.keras.layers.Conv2DTranspose(1, 3, 2, "same"),
        ]
    )


class Vae:
    def __init__(self):
        self.enc, self.dec = encoder(), decoder()
        self.opt = tf.keras.optimizers.Adam(1e-3)
        self.variables = self.enc.trainable_variables + self.dec.trainable_variables

    def loss(self, x, beta):
        mean, logvar = tf.split(self.enc(x, training=True), 2, axis=1)
        z = mean + tf.random.normal(tf.shape(mean)) * tf.exp(0.5 * logvar)
        rec = tf.reduce_sum(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=self.dec(z)), [1, 2, 3]
        )
        kl = -0.5 * tf.reduce_sum(1 + logvar - mean**2 - tf.exp(logvar), 1)
        return tf.reduce_mean(rec + beta * kl)

    @tf.function
    def step(self, x, beta):
        with tf.GradientTape() as tape:
            value = self.loss(x, beta)
        self.opt.apply_gradients(zip(tape.gradient(value, self.variables), self.variables))
        return value


def main(epochs=50):
    images = np.load("cells64.npy").astype("float32")[..., None] / 255.0  # hint: dataset-read-whole
    ds = (
        tf.data.Dataset.from_tensor_slices(images)
        .shuffle(4096)
        .batch(128, drop_remainder=True)
        .prefetch(2)
    )
    vae = Vae()
    total = epochs * (len(images) // 128)
    i = 0
    for epoch in range(epochs):
        mean = tf.keras.metrics.Mean()
        for x in ds:
            beta = min(1.0, 2.0 * i / total)
            mean.update_state(vae.step(x, tf.constant(beta, tf.float32)))
            i += 1
        print(epoch, float(mean.result()))
    vae.dec.save("vae_decoder.keras")


if __name__ == "__main__":
    main()
