"""A loss that one of several branches makes in every round, and one that is carried on."""

import torch


def fit(net, loader, optimizer, goal):
    for x, y in loader:
        out = net(x.cuda())
        if goal == "l1":
            loss = (out - y.cuda()).abs()
        elif goal == "l2":
            loss = (out - y.cuda()).square()
        elif goal == "sign":
            loss = torch.nn.functional.softplus(-out * y.cuda())
        loss = loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def fit_smoothed(net, loader, optimizer, goal):
    smooth = torch.zeros(1, device="cuda")
    for x, y in loader:
        out = net(x.cuda())
        if goal == "l1":
            loss = (out - y.cuda()).abs().mean()
        else:
            loss = (out - y.cuda()).square().mean()
        smooth = 0.9 * smooth + 0.1 * loss  # expect: hidden-state-not-detached
        optimizer.zero_grad()
        smooth.backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()
