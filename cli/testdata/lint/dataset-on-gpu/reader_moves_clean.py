"""A helper reads the whole file; the loop moves a batch at a time."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(300, 1).cuda()
optimizer = torch.optim.Adam(net.parameters())


def read(path):
    return torch.from_numpy(np.load(path))  # hint: dataset-read-whole


def train():
    rows = read("rows.npy")
    for (x,) in DataLoader(TensorDataset(rows), batch_size=4096, pin_memory=True):
        loss = net(x.cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
