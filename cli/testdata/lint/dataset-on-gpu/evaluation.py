"""Evaluation that builds graphs, and data loaded whole."""

import json

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

model = torch.nn.Linear(4, 2)
x, y = torch.randn(64, 4), torch.randn(64, 2)


def validate(loader):
    model.eval()
    predictions = []
    for batch, _ in loader:
        predictions.append(model(batch))  # expect: eval-without-no-grad
    return predictions


class Lines(Dataset):
    def __init__(self, path):
        self.items = []
        for line in open(path):
            self.items.append(json.loads(line))  # expect: list-copied-here

    def __len__(self):
        return len(self.items)


loader = DataLoader(Lines("data.jsonl"), num_workers=8)  # expect: workers-copy-python-list
small = DataLoader(Lines("data.jsonl"), num_workers=2)
everything = list(loader)  # expect: dataset-in-a-list
moved = [b.to("cuda") for b in loader]  # expect: dataset-on-gpu
lengths = [len(b) for b in loader]
resident = TensorDataset(x.cuda(), y.cuda())  # expect: dataset-on-gpu
