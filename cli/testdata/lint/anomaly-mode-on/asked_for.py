"""What the caller asks for: gradients in eval mode, a debugging mode, one card after all."""

import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)  # expect: anomaly-mode-on


def enable_debug_mode():
    torch.autograd.set_detect_anomaly(True)  # hint: anomaly-mode-on


def answers(net, batches, quiet):
    found = []
    net.eval()
    if quiet:
        with torch.no_grad():
            for x in batches:
                found.append(net(x.cuda()).cpu())
    else:
        for x in batches:
            found.append(net(x.cuda()).cpu())
    return found


def accuracy(net, loader, verbose):
    net.eval()
    right = 0
    if verbose:
        print("testing")
    else:
        for x, y in loader:
            out = net(x.cuda())  # expect: eval-without-no-grad
            right += (out.argmax(1).cpu() == y).sum().item()
    return right


def predictability(predictor, make_input, rounds):
    predictor.eval()
    loss = torch.tensor(0.0, requires_grad=True)
    for _ in range(rounds):
        x, y = make_input()
        loss = loss + (predictor(x) - y).square().mean()
    return loss / rounds


def train(net, loader, optimizer):
    net = nn.DataParallel(net)
    net = net.module
    net.train()
    for x, y in loader:
        loss = (net(x.cuda()) - y.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
