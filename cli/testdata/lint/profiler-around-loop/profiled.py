"""A few steps that are profiled or looked into, and cases that are written down."""

import torch
from torch.profiler import profile


def profiled(model, optimizer, x, y, n_batches=3):
    with profile(profile_memory=True) as prof:
        for _ in range(n_batches):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.empty_cache()  # hint: empty-cache-in-loop
    return prof


def diagnosed(model, optimizer, x, y):
    for scale in [1, 2, 5, 10]:
        loss = (model(x * scale) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        print(scale, loss.item())
        torch.cuda.empty_cache()  # hint: empty-cache-in-loop


def grammar(model, test_cases):
    model.eval()
    for name, series in test_cases.items():
        mean, spread = model(series)  # hint: eval-without-no-grad
        print(name, mean[0, -1].tolist(), spread.mean().item())
    model.train()


def whole(model, optimizer, loader):
    with profile(profile_memory=True) as prof:  # expect: profiler-around-loop
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return prof
