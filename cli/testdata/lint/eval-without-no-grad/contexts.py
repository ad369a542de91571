"""no_grad in one run and not in the other, chosen where the block begins or in a variable."""

import contextlib

import torch


def evaluate(model, loader, adapt):
    model.eval()
    right = 0
    with torch.no_grad() if not adapt else contextlib.nullcontext():
        for x, y in loader:
            right += (model(x.cuda()).argmax(1).cpu() == y).sum().item()
    return right


def score(model, loader, adapt):
    model.eval()
    quiet = contextlib.nullcontext() if adapt else torch.no_grad()
    right = 0
    with quiet:
        for x, y in loader:
            right += (model(x.cuda()).argmax(1).cpu() == y).sum().item()
    return right


def measure(model, loader):
    model.eval()
    right = 0
    with contextlib.nullcontext():
        for x, y in loader:
            answer = model(x.cuda())  # expect: eval-without-no-grad
            right += (answer.argmax(1).cpu() == y).sum().item()
    return right
