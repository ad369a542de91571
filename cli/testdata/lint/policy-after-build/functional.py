"""The functional form, and a policy whose name stands in a variable."""

import keras


def build_and_train(x, y):
    precision = "mixed_bfloat16"
    inputs = keras.Input((128,))
    hidden = keras.layers.Dense(512, activation="gelu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(10)(hidden))
    keras.mixed_precision.set_global_policy(precision)  # expect: policy-after-build
    model.compile("adam", "mse")
    model.fit(x, y, batch_size=256)
