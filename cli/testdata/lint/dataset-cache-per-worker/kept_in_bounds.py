"""What a dataset keeps and is small: numbers, as many as a limit says, a few that are named."""

import random

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

CACHE_PER_SET = 4


class Seeds(Dataset):
    def __init__(self):
        self.seeds = []

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        while i >= len(self.seeds):
            self.seeds.append(random.randrange(2**32))
        return np.random.default_rng(self.seeds[i]).normal(size=512)


class Bounded(Dataset):
    def __init__(self, folders):
        self.folders, self.sets = folders, [None] * len(folders)

    def __len__(self):
        return len(self.folders)

    def __getitem__(self, i):
        if self.sets[i] is None:
            rows = np.load(self.folders[i])
            held = sum(s is not None for s in self.sets)
            if held < CACHE_PER_SET:
                self.sets[i] = rows
            return rows
        return self.sets[i]


class Named(Dataset):
    NAMES = ["bace", "bbbp", "clintox"]
    READ = {}

    def __len__(self):
        return len(self.NAMES)

    def __getitem__(self, i):
        if i not in self.READ:
            self.READ[i] = torch.load(self.NAMES[i] + ".pt")
        return self.READ[i]


class Masks(Dataset):
    def __init__(self, pictures, masks):
        self.pictures, self.masks = pictures, []
        for path in masks:
            self.masks.append(np.array(Image.open(path)))  # hint: dataset-read-whole

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, i):
        return np.array(Image.open(self.pictures[i])), self.masks[i]


class Whole(Dataset):
    def __init__(self, folders):
        self.folders, self.rows = folders, {}

    def __len__(self):
        return len(self.folders)

    def __getitem__(self, i):
        if i not in self.rows:
            self.rows[i] = np.load(self.folders[i])  # expect: dataset-cache-per-worker
        return self.rows[i]


def loaders(folders):
    return [DataLoader(d, num_workers=4) for d in (Bounded(folders), Whole(folders))]
