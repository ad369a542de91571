"""Checkpoints, copies, exceptions, figures and cards."""
import copy

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

device = "cuda:0"


def resume(model, optimizer, loader, path):
    checkpoint = torch.load(path, map_location=device)  # expect: checkpoint-kept
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(model, optimizer, loader):
    kept, failed = [], []
    for epoch in range(10):
        for x in loader:
            try:
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            except RuntimeError as e:
                failed.append(e)  # expect: exception-kept
        kept.append(copy.deepcopy(model.state_dict()))  # expect: model-copies-kept
        fig, axes = plt.subplots()  # expect: figures-not-closed
        axes.plot([epoch])
        fig.savefig("epoch%d.png" % epoch)


def start(path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = torch.load(path)  # expect: checkpoint-without-map-location
    weights = saved["model"]
    model.load_state_dict(weights)
    train(model, optimizer, [])


def careful(step, batch):
    try:
        return step(batch)
    except torch.cuda.OutOfMemoryError:  # expect: retry-in-handler
        torch.cuda.empty_cache()
        return step(batch[: len(batch) // 2])


def accumulate(loader, optimizer, every):
    model = FSDP(nn.Linear(4, 4))
    for i, x in enumerate(loader):
        with model.no_sync():  # expect: fsdp-unsynced-gradients
            (model(x).mean() / every).backward()
        if (i + 1) % every == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


spread = nn.DataParallel(nn.Linear(4, 4))  # hint: data-parallel-first-card
fast = torch.compile(spread, mode="reduce-overhead")  # hint: cuda-graph-per-shape
