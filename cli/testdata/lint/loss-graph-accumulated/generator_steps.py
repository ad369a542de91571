import torch
from torch import nn
from feed import loader


def steps(model, opt):
    for x, y in loader:
        out = model(x.to("cuda"))
        loss = nn.functional.cross_entropy(out, y.to("cuda"))
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        yield loss, out.shape[0]


def epoch(model, opt):
    total, count = 0.0, 0
    for loss, n in steps(model, opt):
        total += loss * n  # expect: loss-graph-accumulated
        count += n
    return total / count
