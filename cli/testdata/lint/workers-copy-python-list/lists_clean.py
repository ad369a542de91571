"""Few workers, one array for all samples, and a shared list."""

import json

import memroom
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.lines = [json.loads(line) for line in f]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return torch.tensor(self.lines[i]["ids"])


class Packed(Dataset):
    def __init__(self, path):
        with open(path) as f:
            rows = [json.loads(line)["ids"] for line in f]
        self.ends = np.cumsum([len(r) for r in rows])
        self.ids = np.concatenate(rows)

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, i):
        return torch.from_numpy(self.ids[self.ends[i - 1] if i else 0 : self.ends[i]])


class Shared(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.lines = memroom.share([json.loads(line) for line in f])

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return torch.tensor(self.lines[i]["ids"])


def loaders(path):
    return (
        DataLoader(Sentences(path), batch_size=32, num_workers=1),
        DataLoader(Packed(path), batch_size=32, num_workers=8),
        DataLoader(Shared(path), batch_size=32, num_workers=8),
    )
