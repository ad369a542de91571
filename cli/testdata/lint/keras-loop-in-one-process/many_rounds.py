"""What a little a round becomes over many rounds, and batches that are large by what is written."""

import keras
import numpy as np
from torch.utils.data import DataLoader, Dataset


def build(units):
    return keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(1)])


def random_search(x, y):
    for _ in range(500):
        keras.backend.clear_session()
        model = build(int(np.random.randint(8, 512)))  # expect: keras-loop-in-one-process
        model.compile("sgd", "mse")
        model.fit(x, y)


def serve(queue):
    while True:
        keras.backend.clear_session()
        model = build(32)  # expect: keras-loop-in-one-process
        model.compile("sgd", "mse")
        model.fit(*queue.get())


def three_seeds(x, y):
    for _ in range(3):
        keras.backend.clear_session()
        model = build(32)  # hint: keras-loop-in-one-process
        model.compile("sgd", "mse")
        model.fit(x, y)


class Frames(Dataset):
    def __init__(self, path):
        self.frames = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return self.frames[i].astype("float32")


def loaders(path):
    data = Frames(path)
    large = DataLoader(  # expect: loader-buffers
        data, 2048, num_workers=4, persistent_workers=True
    )
    named = DataLoader(  # expect: loader-buffers
        data, batch_size=2048, num_workers=4, persistent_workers=True
    )
    small = DataLoader(  # hint: loader-buffers
        data, batch_size=32, num_workers=24, persistent_workers=True
    )
    return large, named, small
