"""Layers taken out of pairs stay layers."""

import numpy as np
import pandas as pd
import torch
from elsewhere import stream
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.bodies = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.heads = nn.ModuleList([nn.Linear(8, 2) for _ in range(4)])
        self.weights = torch.ones(4)

    def forward(self, x):
        outs = []
        for body, head in zip(self.bodies, self.heads):
            x = body(x).relu()
            outs.append(head(x))
        return outs

    def learn(self, x, y, opt):
        losses = [nn.functional.cross_entropy(o, y) for o in self.forward(x)]
        total = sum(w * v for w, v in zip(self.weights.detach(), losses))
        opt.zero_grad()
        total.backward()
        opt.step()
        self.weights = self.weights * torch.exp(-torch.stack(losses))  # expect: graph-kept-in-list


def run():
    net = Ensemble()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in stream:
        net.learn(x, y, opt)


def read(path):
    frame = pd.read_csv(path).dropna()
    y = frame.pop("y")
    return (frame - frame.mean()) / frame.std(), y


def fit_whole(path, net, opt):
    frame, y = read(path)
    x = torch.tensor(frame.values).to("cuda")  # expect: dataset-on-gpu
    loader = DataLoader(TensorDataset(x, torch.tensor(y.values)), 512, shuffle=True)
    for xb, yb in loader:
        loss = nn.functional.mse_loss(net(xb.float()), yb.float().cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()


def fit_batches(path, net, opt):
    data = np.load(path)  # hint: dataset-read-whole
    loader = DataLoader(TensorDataset(torch.from_numpy(data)), 512)
    for (xb,) in loader:
        loss = net(xb.to("cuda")).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
