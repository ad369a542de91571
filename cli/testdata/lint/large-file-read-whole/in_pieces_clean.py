"""The same files mapped, read in pieces, and streamed."""

import memroom
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset


def mapped(model, optimizer):
    x = np.load("large.npy", mmap_mode="r")
    for i in range(0, len(x), 64):
        loss = model(torch.from_numpy(np.array(x[i : i + 64])).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Mapped(Dataset):
    def __init__(self):
        self.rows = np.load("large.npy", mmap_mode="r")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return torch.from_numpy(np.array(self.rows[i]))


def in_pieces(model, optimizer):
    for piece in pd.read_csv("large.csv", chunksize=4096):
        loss = model(torch.tensor(piece.to_numpy()).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def streamed(model, optimizer):
    for x in DataLoader(memroom.Stream("large.npy"), batch_size=32, num_workers=2):
        loss = model(x.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


loaders = [DataLoader(Mapped(), batch_size=32)]
