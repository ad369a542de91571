import numpy as np, tensorflow as tf

x = np.load("x.npy")  # hint: dataset-read-whole
y = np.load("y.npy")
ds = tf.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(len(x)).batch(32)  # expect: tf-dataset-from-array
outs = []
for lr in [1e-3, 1e-4, 1e-5]:
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])  # hint: keras-model-in-loop
    model.compile(tf.keras.optimizers.Adam(lr), "mse")
    model.fit(ds)
for bx, by in ds:
    outs.append(model(bx))  # hint: outputs-kept-on-card


@tf.function
def f(x, n):
    return x * n


for i in range(1000):
    f(x, i)  # expect: tf-function-retraced
