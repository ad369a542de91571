"""The same done right: nothing may be found here."""
import copy

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def resume(model, optimizer, loader, path):
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    other = torch.load(path, map_location="cuda")
    optimizer.load_state_dict(other["optimizer"])
    del other
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def load(model, path):
    state = torch.load(path)
    model.load_state_dict(state)
    return model


def train(model, optimizer, loader):
    best, errors = None, []
    for epoch in range(10):
        for x in loader:
            try:
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            except RuntimeError as e:
                errors.append(str(e))
        best = copy.deepcopy(model.state_dict())
        fig, axes = plt.subplots()
        fig.savefig("epoch%d.png" % epoch)
        plt.close(fig)
    return best


def careful(step, batch):
    failed = False
    try:
        return step(batch)
    except torch.cuda.OutOfMemoryError:
        failed = True
    if failed:
        torch.cuda.empty_cache()
        return step(batch[: len(batch) // 2])


def accumulate(loader, optimizer, every):
    model = DDP(nn.Linear(4, 4))
    for i, x in enumerate(loader):
        with model.no_sync():
            (model(x).mean() / every).backward()
        if (i + 1) % every == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


fast = torch.compile(nn.Linear(4, 4))
