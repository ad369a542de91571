"""The other half of project_parts.py."""

import torch
from project_parts import Scorer, look_over, pass_over


def train(loader, held_out):
    net = Scorer().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in loader:
        loss = net(x.cuda()).pow(2).mean() + torch.stack(net.scores).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        net.scores = []
    with torch.no_grad():
        print(pass_over(net, held_out))
    print(look_over(net, held_out))
