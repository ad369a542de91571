"""Rows and records that many workers read."""

import csv
import json

import torch
from torch.utils.data import DataLoader, Dataset
import numpy as np
import pyarrow as pa


class Reviews(Dataset):
    def __init__(self, path):
        self.rows = []
        with open(path, newline="") as f:
            for row in csv.DictReader(f):
                self.rows.append(row)  # expect: list-copied-here

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return torch.tensor([ord(c) % 256 for c in row["text"]]), int(row["stars"])


class Dialogues(torch.utils.data.Dataset):
    def __init__(self, path, tokenizer):
        with open(path) as f:
            self.samples = [json.loads(line) for line in f]  # expect: list-copied-here
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.tokenizer(self.samples[i]["question"], self.samples[i]["answer"])


def train(model, optimizer, path):
    data = Reviews(path)
    loader = DataLoader(  # expect: workers-copy-python-list
        data, batch_size=64, shuffle=True, num_workers=8
    )
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def tune(model, optimizer, path, tokenizer):
    for batch in DataLoader(  # expect: workers-copy-python-list
        Dialogues(path, tokenizer), 16, num_workers=12
    ):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


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


def train_clean(model, optimizer, path):
    for x in DataLoader(Numbers(path), batch_size=64, shuffle=True, num_workers=8):
        loss = model(x.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


loaders = [
    DataLoader(Offsets("a.jsonl"), num_workers=8),
    DataLoader(Table("a.arrow"), num_workers=8),
]
