"""Asks called_both_ways.py."""

import torch
from called_both_ways import Runner


def main(model, optimizer, loaders, loss_fn, only_test):
    runner = Runner(model, optimizer)
    if only_test:
        return runner.val(loaders["test"], loss_fn)
    for _ in range(10):
        runner.fit(loaders["train"], loss_fn)
        with torch.no_grad():
            print(runner.val(loaders["val"], loss_fn))
    return None
