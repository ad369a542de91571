"""Lists of Python objects behind many workers."""

import json

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset
import memroom
import numpy as np


class Sentences(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.lines = [json.loads(line) for line in f]  # expect: list-copied-here

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return torch.tensor(self.lines[i]["ids"])


def plain(model, optimizer, path):
    loader = DataLoader(  # expect: workers-copy-python-list
        Sentences(path), batch_size=32, num_workers=8
    )
    for ids in loader:
        loss = model(ids.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Trainer:
    def __init__(self, model, path, workers=16):
        self.model = model
        self.data = Sentences(path)
        self.loader = DataLoader(self.data, 64, num_workers=16)  # expect: workers-copy-python-list

    def losses(self):
        for ids in self.loader:
            yield self.model(ids.cuda()).mean()


class Text(L.LightningDataModule):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def setup(self, stage):
        self.train_set = Sentences(self.path)

    def train_dataloader(self):
        return DataLoader(  # expect: workers-copy-python-list
            self.train_set, batch_size=32, num_workers=6
        )


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
