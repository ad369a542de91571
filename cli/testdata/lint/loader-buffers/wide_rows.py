"""Rows whose size only the shape of an array shows, and what workers keep of them."""

import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Fields(Dataset):
    def __init__(self):
        self.fields = np.zeros((6000, 12, 181, 360))

    def __len__(self):
        return len(self.fields)

    def __getitem__(self, at):
        return torch.from_numpy(self.fields[at] * 0.5)


hours = DataLoader(  # expect: loader-buffers
    Fields(), batch_size=2048, num_workers=os.cpu_count(), persistent_workers=True
)
fields = Fields()
days = DataLoader(fields, 1024, num_workers=12, prefetch_factor=8)  # expect: loader-buffers
some = DataLoader(Fields(), batch_size=4, num_workers=2)


def epochs(model, optimizer):
    for _ in range(10):
        for loader in (hours, days, some):
            for batch in loader:
                optimizer.zero_grad()
                model(batch).mean().backward()
                optimizer.step()
