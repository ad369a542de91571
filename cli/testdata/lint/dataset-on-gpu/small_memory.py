"""Some samples of each class on the card, and a list of the names of the classes: both are small."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, root, names):
        self.categories = []
        for line in open(names):
            self.categories.append(line.rstrip())
        self.points = np.load(root, mmap_mode="r")

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i], len(self.categories)


def train(net, optimizer, criterion, root, names):
    memory_bank = np.load("memory_bank.npy")  # hint: dataset-read-whole
    memory_bank = torch.from_numpy(memory_bank).to("cuda")  # hint: dataset-on-gpu
    loader = DataLoader(Shapes(root, names), num_workers=10)  # hint: workers-copy-python-list
    for i, (x, y) in enumerate(loader):
        x = torch.cat([x.cuda(), memory_bank[i % 10 : i % 10 + 8]])
        loss = criterion(net(x), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
