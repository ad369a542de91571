"""Loaders that let the last piece go, or keep a few."""

from collections import deque

import numpy as np
import torch
from PIL import Image


class Shards:
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        for path in self.paths:
            shard = np.load(path)
            yield from torch.from_numpy(shard).split(64)


class Recent:
    def __init__(self, paths):
        self.paths, self.loaded = paths, deque(maxlen=2)

    def __iter__(self):
        for path in self.paths:
            shard = np.load(path)
            self.loaded.append(shard)
            yield from torch.from_numpy(shard).split(64)


class Pictures:
    def __init__(self, files, limit):
        self.files, self.limit, self.cache = files, limit, {}

    def __iter__(self):
        for name in self.files:
            if name not in self.cache:
                if len(self.cache) >= self.limit:
                    self.cache.pop(next(iter(self.cache)))
                self.cache[name] = np.asarray(Image.open(name))
            yield torch.from_numpy(self.cache[name])


class Sizes:
    """A number of each file, not what it holds."""

    def __init__(self, files):
        self.files, self.sizes = files, []

    def __iter__(self):
        for name in self.files:
            picture = np.asarray(Image.open(name))
            self.sizes.append(picture.shape)
            yield picture


class Sums:
    def __init__(self, rounds, width):
        self.rounds, self.width = rounds, width
        self.means = []

    def __iter__(self):
        for _ in range(self.rounds):
            block = np.random.normal(size=(32, self.width))
            middle = np.mean(block)
            self.means.append(middle)
            yield torch.from_numpy(block)
