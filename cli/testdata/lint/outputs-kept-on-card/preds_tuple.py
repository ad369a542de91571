"""Preds tuple: one mistake, and its right twin beside it."""

import torch


def predict(model, loader):
    model.eval()
    res = ()
    with torch.no_grad():
        for x in loader:
            res = res + (model(x.cuda()),)  # hint: outputs-kept-on-card
    return torch.cat(res)
