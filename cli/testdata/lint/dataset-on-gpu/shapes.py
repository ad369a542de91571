"""Averages, moved losses, retained graphs, data on the card, profilers."""
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

device = torch.device("cuda")


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {n: p.clone().detach() for n, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name] = self.decay * self.shadow[name] + (1 - self.decay) * p  # expect: graph-kept-in-list

    def update_in_place(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p, alpha=1 - self.decay)  # expect: graph-kept-in-list

    @torch.no_grad()
    def update_right(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p, alpha=1 - self.decay)

    def update_data(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p.data, alpha=1 - self.decay)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(4)
        self.std = torch.ones(4)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)  # expect: module-keeps-tensors
        self.std = 0.9 * self.std + 0.1 * x.std(0).detach()
        return x - self.mean.detach()


def believes(model, loader, optimizer, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
        cpu_loss = loss.to(torch.device("cpu"))  # expect: loss-to-cpu-before-backward
        optimizer.zero_grad()
        cpu_loss.backward()
        optimizer.step()
        print(loss.cpu().item())


def two_heads(model, loader, optimizer):
    for x in loader:
        a, b = model(x)
        optimizer.zero_grad()
        a.mean().backward(retain_graph=True)
        b.mean().backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()


def second_order(model, loader, optimizer):
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward(create_graph=True)  # expect: backward-create-graph
        optimizer.step()


def same_graph_again(loss, optimizer):
    for _ in range(3):
        loss.backward(retain_graph=True)
        optimizer.step()


def whole_table(model, optimizer):
    table = pd.read_csv("train.csv")
    x = torch.tensor(table.values, dtype=torch.float32).to(device)  # expect: dataset-on-gpu
    for i in range(0, len(x), 64):
        loss = model(x[i : i + 64]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def whole_arrays():
    images, labels = np.load("x.npy"), np.load("y.npy")  # hint: dataset-read-whole
    images = torch.from_numpy(images).cuda()  # expect: dataset-on-gpu
    labels = torch.from_numpy(labels)
    return DataLoader(TensorDataset(images, labels), batch_size=32)


loader = DataLoader(TensorDataset(torch.zeros(9)), batch_size=3)
waiting = []
for batch in loader:
    moved = batch[0].to(device)
    waiting.append(moved)  # expect: dataset-on-gpu


class OnCard(Dataset):
    def __getitem__(self, index):
        return torch.zeros(3).cuda()  # expect: card-in-workers


busy = DataLoader(OnCard(), num_workers=2)


def profiled(model, loader, optimizer):
    with torch.profiler.profile() as p:  # expect: profiler-around-loop
        for x in loader:
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)) as p:
        for x in loader:
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            p.step()


torch.autograd.set_detect_anomaly(True)  # expect: anomaly-mode-on
