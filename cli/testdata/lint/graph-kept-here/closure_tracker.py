import torch
from torch import nn
from feed import loader


def make_tracker():
    seen = []

    def track(value):
        seen.append(value)  # expect: graph-kept-here
        return sum(float(v) for v in seen[-50:]) / min(len(seen), 50)

    return track


def fit():
    net = nn.LSTM(16, 32).cuda()
    head = nn.Linear(32, 1).cuda()
    opt = torch.optim.Adam([*net.parameters(), *head.parameters()])
    smooth = make_tracker()
    for x, y in loader:
        h, _ = net(x.cuda())
        loss = (head(h[-1]) - y.cuda()).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(smooth(loss))  # expect: graph-kept-in-list
