"""Models of a search, and of a few optimizers that are listed."""

from tensorflow import keras
from tensorflow.keras import layers, optimizers


def train(x, y, optimizer):
    model = keras.Sequential([layers.Dense(64), layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    return model.fit(x, y, epochs=20)


def compare(x, y):
    tried = []
    tried.append(optimizers.SGD(0.1))
    tried.append(optimizers.Adam(0.1))
    tried.append(optimizers.Nadam(0.1))
    for optimizer in tried:
        train(x, y, optimizer)  # hint: keras-model-in-loop


def search(x, y, rates):
    for rate in rates:
        train(x, y, optimizers.Adam(rate))  # expect: keras-model-in-loop


def ensemble(x, y, members):
    models = []
    for _ in range(members):
        models.append(keras.Sequential([layers.Dense(64)]))  # hint: keras-model-in-loop
        models[-1].compile(loss="mse")
        models[-1].fit(x, y)
    return models
