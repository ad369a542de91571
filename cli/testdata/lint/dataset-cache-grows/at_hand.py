"""Caches of what lies in memory anyway, and of what is read from files."""

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import MNIST


class Rows(Dataset):
    def __init__(self, table):
        self.rows = np.array(table).astype(np.float32)
        self._cache = {}

    def __getitem__(self, i):
        if i not in self._cache:
            self._cache[i] = torch.tensor(self.rows[i])  # hint: dataset-cache-grows
        return self._cache[i]


class Digits(Dataset):
    def __init__(self, root):
        self.inner = MNIST(root)
        self._cache = {}

    def __getitem__(self, i):
        if i not in self._cache:
            self._cache[i] = list(self.inner[i])  # hint: dataset-cache-grows
        return self._cache[i]


class Pictures(Dataset):
    def __init__(self, files):
        self.files = files
        self._cache = {}

    def __getitem__(self, i):
        if i not in self._cache:
            self._cache[i] = np.array(Image.open(self.files[i]))  # expect: dataset-cache-grows
        return torch.from_numpy(self._cache[i])


loader = DataLoader(Pictures(["a.png"]), batch_size=8)
