"""Columns of numbers, offsets into a file, and a table that is mapped."""

import json

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset


class Offsets(Dataset):
    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            self.starts = np.cumsum([0] + [len(line) for line in f])

    def __len__(self):
        return len(self.starts) - 1

    def __getitem__(self, i):
        with open(self.path, "rb") as f:
            f.seek(self.starts[i])
            return json.loads(f.readline())


class Table(Dataset):
    def __init__(self, path):
        self.table = pa.ipc.open_file(pa.memory_map(path)).read_all()

    def __len__(self):
        return self.table.num_rows

    def __getitem__(self, i):
        return self.table.slice(i, 1).to_pylist()[0]


class Numbers(Dataset):
    def __init__(self, path):
        self.x = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(np.array(self.x[i]))


def train(model, optimizer, path):
    for x in DataLoader(Numbers(path), batch_size=64, shuffle=True, num_workers=8):
        loss = model(x.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


loaders = [
    DataLoader(Offsets("a.jsonl"), num_workers=8),
    DataLoader(Table("a.arrow"), num_workers=8),
]
