"""Steps once in a while are accumulation where the code says so."""

import torch


def by_print(model, loader, criterion, optimizer, print_freq):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()  # hint: accumulation-unscaled
        if i % print_freq == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def by_accumulation(model, loader, criterion, optimizer, accumulation_steps):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()  # expect: accumulation-unscaled
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def thresholded(model, loader, criterion, optimizer):
    every = None
    for x, y in loader:
        out = model(x.cuda())
        loss = criterion(out, y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = (out > 0.5).float()
        every = torch.cat([every, right]) if every is not None else right
    return every
