"""The default mode, a step of the optimizer, and a mode of one's own."""

import torch
from torch.nn.utils.rnn import pad_sequence


def default_mode(model, rows):
    ids = pad_sequence([torch.tensor(r["ids"]) for r in rows], batch_first=True)
    fast = torch.compile(model.cuda())
    return fast(ids.cuda())


def named_default(model):
    return torch.compile(model.cuda(), mode="default", dynamic=True)


def of_the_optimizer(optimizer):
    fast = torch.compile(optimizer.step, mode="reduce-overhead")
    for _ in range(3):
        fast()
    return fast
