"""Lists of a module that somebody else empties: by a key, through a helper, or from outside."""

import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.weights_seen = []
        self.masks = []

    def forward(self, x):
        mask = self.net(x)
        if self.training:
            self.masks.append(mask)  # hint: module-keeps-tensors
        else:
            self.weights_seen.extend(mask)  # hint: module-keeps-tensors
        return x * mask


class Client:
    def __init__(self, model):
        self.model = model

    def test(self, loader):
        self.model.gate.weights_seen = []
        with torch.no_grad():
            for x in loader:
                self.model(x.cuda())
        return [m.mean().item() for m in self.model.gate.weights_seen]

    def train(self, loader, optimizer):
        for _ in range(5):
            self.model.gate.masks = []
            for x in loader:
                loss = self.model(x.cuda()).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


class Task(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.results = {"val": [], "test": []}
        self.seen = []

    def validation_step(self, batch, index):
        out = self.net(batch)
        self.results["val"].append(out)  # hint: module-keeps-tensors
        self.seen.append(out)  # expect: module-keeps-tensors
        return out

    def on_validation_epoch_end(self):
        self.gather("val")

    def gather(self, session):
        joined = torch.cat(self.results[session])
        print(joined.mean())
        self.restart(session)

    def restart(self, session):
        self.results[session].clear()
