"""Whole files on the card, large objects in Ray functions, caches in datasets with workers."""
import h5py
import numpy as np
import pandas as pd
import ray
import torch
from torch.utils.data import DataLoader, Dataset

table = pd.read_csv("events.csv")
model = torch.load("big.pt", map_location="cpu")
SEEN = {}


def means(rows):
    return table.loc[rows].mean()  # expect: ray-captures-large-object


far_means = ray.remote(means)


@ray.remote
def infer(net, batch):
    return net(batch)


def all_of(batches):
    return [infer.remote(model, b) for b in batches]  # expect: ray-passes-large-object


class Frames(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        path = self.paths[i]
        if path not in SEEN:
            SEEN[path] = np.load(path)  # expect: dataset-cache-per-worker
        return SEEN[path]


def train(net, optimizer, criterion, paths):
    loader = DataLoader(Frames(paths), batch_size=4, num_workers=4)
    with h5py.File("all.h5") as f:
        images = torch.tensor(f["images"][:]).cuda()  # expect: dataset-on-gpu
    for i in range(0, len(images), 32):
        loss = criterion(net(images[i : i + 32]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pieces = torch.load("train_data.pt").to("cuda")  # expect: dataset-on-gpu
    for piece in pieces.split(64):
        loss = criterion(net(piece))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loader
