"""Ways to write a training loop in TensorFlow, each of twelve steps. Prints the losses exactly, and, where the probe is
there, the steps it has counted after each, to stderr.
"""

import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
tf.keras.utils.set_random_seed(7)
X, Y = tf.random.normal((32, 4)), tf.random.normal((32, 1))


def tell(name, losses):
    print(name, [float(loss).hex() for loss in losses])
    probe = sys.modules.get("_memroom_probe.watch.watched")
    if probe is not None:
        print("counted", name, probe.watched.loop.step, file=sys.stderr)


def network():
    return tf.keras.Sequential(
        [tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)]
    )


def stepper(model, optimizer):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    return step


step = stepper(network(), tf.keras.optimizers.Adam())
tell("eager", [step(X, Y) for _ in range(12)])

model = network()
step = tf.function(stepper(model, tf.keras.optimizers.Adam()))
batches = tf.data.Dataset.from_tensors((X, Y)).repeat(12)
tell("compiled", [step(x, y) for x, y in batches])
tell("evaluated", [tf.reduce_mean(model(X, training=False)) for _ in range(6)])
with tempfile.TemporaryDirectory() as folder:
    step(X, Y)
    model.save_weights(os.path.join(folder, "a.weights.h5"))

step = stepper(network(), tf.compat.v1.train.GradientDescentOptimizer(0.1))
tell("old optimizer", [step(X, Y) for _ in range(12)])


class Own(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {"loss": loss}


own = Own()
own.compile(tf.keras.optimizers.SGD(0.1))
history = own.fit(np.asarray(X), np.asarray(Y), batch_size=8, epochs=3, shuffle=False, verbose=0)
tell("train_step", history.history["loss"])
plain = network()
plain.compile("sgd", "mse")
tell("train_on_batch", [plain.train_on_batch(X, Y) for _ in range(12)])

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model, optimizer = network(), tf.keras.optimizers.SGD(0.1)
    model.build((None, 4))
    optimizer.build(model.trainable_variables)
    inner = stepper(model, optimizer)


@tf.function
def distributed(x, y):
    return strategy.reduce("MEAN", strategy.run(inner, args=(x, y)), axis=None)


tell("strategy", [distributed(X, Y) for _ in range(12)])

weight = tf.Variable(tf.ones((4, 1)))
losses = []
for _ in range(16):
    with tf.GradientTape() as tape:
        losses.append(tf.reduce_mean((X @ weight - Y) ** 2))
    weight.assign_sub(0.1 * tape.gradient(losses[-1], weight))
tell("by hand", losses)

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x, w = tf.constant(X.numpy()), tf.compat.v1.get_variable("w", (4, 1))
    loss = tf.reduce_mean((x @ w - Y.numpy()) ** 2)
    train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    session.run(w.assign(tf.ones((4, 1))))
    tell("session", [session.run([train, loss])[1] for _ in range(16)])
