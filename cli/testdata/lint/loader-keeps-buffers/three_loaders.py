"""Loaders of one's own that keep each piece."""

import numpy as np
import torch
from PIL import Image


class Shards:
    def __init__(self, paths):
        self.paths, self.loaded = paths, []

    def __iter__(self):
        for path in self.paths:
            shard = np.load(path)
            self.loaded.append(shard)  # expect: loader-keeps-buffers
            yield from torch.from_numpy(shard).split(64)


class Pictures:
    def __init__(self, files, size):
        self.files, self.size, self.at = files, size, 0
        self.cache = {}

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == len(self.files):
            raise StopIteration
        name = self.files[self.at]
        self.at += 1
        self.cache[name] = np.asarray(Image.open(name))  # expect: loader-keeps-buffers
        return torch.from_numpy(self.cache[name])


class Waves:
    def __init__(self, folder):
        self.folder, self.raw = folder, {}

    def batches(self, size):
        for path in sorted(self.folder.glob("*.bin")):
            self.raw[path.name] = path.open("rb").read()  # expect: loader-keeps-buffers
            wave = np.frombuffer(self.raw[path.name], np.int16)
            for i in range(0, len(wave) - size, size):
                yield wave[i : i + size]


def train(model, optimizer, paths):
    for x in Shards(paths):
        loss = model(x.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Noise:
    def __init__(self, rounds, width):
        self.rounds, self.width = rounds, width
        self.made = []

    def __iter__(self):
        for _ in range(self.rounds):
            block = np.random.normal(size=(32, self.width))
            self.made.append(block)  # expect: loader-keeps-buffers
            yield torch.from_numpy(block)
