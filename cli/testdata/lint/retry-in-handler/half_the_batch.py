"""A step with half the batch, inside the handler and behind it."""

import gc

import torch
from accelerate import Accelerator


def forward(model, x, y):
    return torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())


def plain(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        try:
            forward(model, x, y).backward()
        except RuntimeError as e:  # expect: retry-in-handler
            if "out of memory" not in str(e):
                raise
            torch.cuda.empty_cache()
            for half_x, half_y in zip(x.chunk(2), y.chunk(2)):
                (forward(model, half_x, half_y) / 2).backward()
        optimizer.step()


def behind_it(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        failed = False
        try:
            forward(model, x, y).backward()
        except torch.cuda.OutOfMemoryError:
            failed = True
        if failed:
            gc.collect()
            torch.cuda.empty_cache()
            for half_x, half_y in zip(x.chunk(2), y.chunk(2)):
                (forward(model, half_x, half_y) / 2).backward()
        optimizer.step()


def by_accelerate(model, optimizer, loader):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        try:
            accelerator.backward(forward(model, x, y))
            optimizer.step()
        except torch.cuda.OutOfMemoryError:
            print("skipped", len(x))
        optimizer.zero_grad()
