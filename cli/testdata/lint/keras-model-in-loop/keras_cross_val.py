import numpy as np
from sklearn.model_selection import KFold
from tensorflow import keras
from tensorflow.keras import layers


def net(width):
    inp = keras.Input((128,))
    h = layers.Dense(width, activation="relu")(inp)
    m = keras.Model(inp, layers.Dense(1)(h))
    m.compile("adam", "mse")
    return m


def score(width, x, y, train, test):
    model = net(width)
    model.fit(x[train], y[train], epochs=20, verbose=0)
    return model.evaluate(x[test], y[test], verbose=0)


x, y = np.random.rand(10000, 128), np.random.rand(10000)
table = {}
for width in (64, 128, 256, 512, 1024):
    marks = []
    for train, test in KFold(10).split(x):
        marks.append(score(width, x, y, train, test))  # expect: keras-model-in-loop
    table[width] = np.mean(marks)
print(table)
