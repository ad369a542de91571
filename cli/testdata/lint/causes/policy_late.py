import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(1000), tf.keras.layers.Dense(10)])
tf.keras.mixed_precision.set_global_policy("mixed_float16")  # expect: policy-after-build
model.compile("adam", "mse")
model.fit(x, y)
