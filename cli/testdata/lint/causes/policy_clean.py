import tensorflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_float16")
model = tf.keras.Sequential([tf.keras.layers.Dense(1000), tf.keras.layers.Dense(10)])
model.compile("adam", "mse")
model.fit(x, y)
