"""Preds tuple, done right."""

import torch


def predict(model, loader):
    model.eval()
    res = ()
    with torch.no_grad():
        for x in loader:
            res = res + (model(x.cuda()).argmax(-1).cpu(),)
    return torch.cat(res)
