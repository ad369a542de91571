from collections import defaultdict

import torch
from torch import nn

from feed import train_batches


class Sums:
    def __init__(self):
        self.total, self.n = defaultdict(float), defaultdict(int)

    def __iadd__(self, pairs):
        for k, v in pairs.items():
            self.total[k] = self.total[k] + v  # expect: graph-kept-here
            self.n[k] += 1
        return self

    def mean(self, k):
        return float(self.total[k]) / self.n[k]


net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
opt = torch.optim.RMSprop(net.parameters())
sums = Sums()
for x, y in train_batches():
    out = net(x.cuda())
    fit = nn.functional.l1_loss(out, y.cuda())
    reg = sum(p.pow(2).sum() for p in net.parameters()) * 1e-4
    opt.zero_grad()
    (fit + reg).backward()
    opt.step()
    sums += {"fit": fit, "reg": reg}  # expect: loss-graph-accumulated
print(sums.mean("fit"))


class SumsClean:
    def __init__(self):
        self.total, self.n = defaultdict(float), defaultdict(int)

    def __iadd__(self, pairs):
        for k, v in pairs.items():
            self.total[k] = self.total[k] + float(v)
            self.n[k] += 1
        return self

    def mean(self, k):
        return float(self.total[k]) / self.n[k]


sums_clean = SumsClean()
for x_clean, y_clean in train_batches():
    out_clean = net(x_clean.cuda())
    fit_clean = nn.functional.l1_loss(out_clean, y_clean.cuda())
    reg_clean = sum(p_clean.pow(2).sum() for p_clean in net.parameters()) * 1e-4
    opt.zero_grad()
    (fit_clean + reg_clean).backward()
    opt.step()
    sums_clean += {"fit": fit_clean, "reg": reg_clean}
print(sums_clean.mean("fit"))
