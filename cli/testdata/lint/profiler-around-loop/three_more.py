"""The profiler keeps every event of the loop that it stands around; a schedule bounds them."""

import torch
from torch.profiler import profile, schedule


def epoch(model, optimizer, loader):
    with torch.profiler.profile() as prof:  # expect: profiler-around-loop
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return prof


def with_shapes(model, optimizer, train_loader):
    with profile(record_shapes=True, with_stack=True) as prof:  # expect: profiler-around-loop
        for batch in train_loader:
            optimizer.zero_grad()
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()
    print(prof.key_averages())


def scheduled(model, optimizer, loader):
    with profile(schedule=schedule(wait=1, warmup=1, active=3)) as prof:
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()


def one_step(model, optimizer, loader):
    x, y = next(iter(loader))
    with profile() as prof:
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
    return prof


def inside(model, optimizer, loader):
    for x, y in loader:
        with profile() as prof:
            loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(prof.key_averages().total_average())
