"""Optimizers that all take their step, and optimizers that only pile up."""

import torch


def grow(net, loader, loss_fn, stages):
    optimizers = {}
    for stage in range(stages):
        part = net.add(stage).cuda()
        optimizers[stage] = torch.optim.Adam(part.parameters())  # hint: optimizers-kept
        for x, y in loader:
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            loss_fn(net(x.cuda()), y.cuda()).backward()
            for optimizer in optimizers.values():
                optimizer.step()


def pile(net, loader, loss_fn, stages):
    optimizers = []
    for _ in range(stages):
        optimizer = torch.optim.Adam(net.parameters())
        optimizers.append(optimizer)  # expect: optimizers-kept
        for x, y in loader:
            optimizer.zero_grad()
            loss_fn(net(x.cuda()), y.cuda()).backward()
            optimizer.step()
