"""A function that is kept for old callers only is not what trains today."""

import warnings

import torch
from typing_extensions import deprecated


def score_words(model, loader, loss_fn):
    """Mean loss under teacher forcing. DEPRECATED: use the beam search instead."""
    model.eval()
    shown = []
    for words, gold in loader:
        shown.append(loss_fn(model(words.cuda()), gold.cuda()).item())  # hint: eval-without-no-grad
    return sum(shown) / len(shown)


@deprecated("see train_epoch")
def old_epoch(model, loader, optimizer, loss_fn):
    total = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss  # hint: loss-graph-accumulated
    return total


def probe(model, loader, loss_fn):
    warnings.warn("probe() goes away in the next release", DeprecationWarning, stacklevel=2)
    model.eval()
    for x, y in loader:
        print(loss_fn(model(x.cuda()), y.cuda()).item())  # hint: eval-without-no-grad


def still_used(model, loader, loss_fn):
    """Deprecated, but the main loop below has not moved on."""
    model.eval()
    for x, y in loader:
        print(loss_fn(model(x.cuda()), y.cuda()).item())  # expect: eval-without-no-grad


def load_words(model, loader, loss_fn):
    """Reads a checkpoint; its "deprecation" field is skipped."""
    model.eval()
    for x, y in loader:
        print(loss_fn(model(x.cuda()), y.cuda()).item())  # expect: eval-without-no-grad


def main(model, loader, loss_fn):
    still_used(model.to(torch.device("cuda")), loader, loss_fn)
