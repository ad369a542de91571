"""A helper reads the whole file; its caller moves it to the card."""

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda"
net = nn.Linear(300, 1).to(device)
optimizer = torch.optim.Adam(net.parameters())


def read_frame(path):
    frame = pd.read_parquet(path)  # hint: dataset-read-whole
    rows = torch.tensor(frame.drop(columns="y").values, dtype=torch.float32)
    wanted = torch.tensor(frame["y"].values)
    return rows, wanted


def read_volume(path):
    return torch.from_numpy(np.load(path))  # hint: dataset-read-whole


def of_a_frame():
    rows, wanted = read_frame("all.parquet")
    rows = rows.to(device)  # expect: dataset-on-gpu
    for x, y in DataLoader(TensorDataset(rows, wanted), batch_size=4096):
        loss = (net(x) - y.to(device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def of_an_array(batch=256):
    volume = read_volume("volume.npy")
    volume = volume.cuda()  # expect: dataset-on-gpu
    for i in range(0, len(volume), batch):
        loss = net(volume[i : i + batch]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
