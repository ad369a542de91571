import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(256), tf.keras.layers.Dense(10)])
opt = tf.keras.optimizers.Adam()
data = tf.data.TFRecordDataset("train.tfrecord").batch(64)


@tf.function
def step(x, y, epoch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.mse(y, model(x))) / (tf.cast(epoch, tf.float32) + 1.0)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss


class Loop:
    def __init__(self):
        self.seen = 0

    def run(self):
        for x, y in data:
            self.seen += 1
            step(x, y, self.seen)  # expect: tf-function-retraced


Loop().run()


class LoopClean:
    def __init__(self):
        self.seen = 0

    def run(self):
        for x, y in data:
            self.seen += 1
            step(x, y, tf.constant(self.seen))


LoopClean().run()
