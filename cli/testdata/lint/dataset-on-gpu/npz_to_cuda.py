"""Npz to cuda: one mistake, and its right twin beside it."""

import numpy as np
import torch


def load(path, device):
    blob = np.load(path)
    images = torch.from_numpy(blob["images"]).float().to(device)  # expect: dataset-on-gpu
    return images, torch.from_numpy(blob["labels"])


def main():
    device = torch.device("cuda")
    xs, ys = load("train.npz", device)
    net = torch.nn.Conv2d(3, 8, 3).to(device)
    opt = torch.optim.Adam(net.parameters())
    for i in range(0, len(xs), 64):
        loss = net(xs[i : i + 64]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


main()
