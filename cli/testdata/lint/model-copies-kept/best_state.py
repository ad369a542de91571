"""Best state: one mistake, and its right twin beside it."""

import torch


def cv(make, folds):
    kept = []
    for tr, va in folds:
        m = make().cuda()
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        for x, y in tr:
            opt.zero_grad()
            torch.nn.functional.cross_entropy(m(x.cuda()), y.cuda()).backward()
            opt.step()
        kept.append(m.state_dict())  # expect: model-copies-kept
    return kept
