"""Gradients in eval mode that a helper takes: no graph is wasted."""

import torch


def sensitivities(outputs, layers):
    return [torch.autograd.grad(outputs[:, i].sum(), layers, retain_graph=True) for i in range(10)]


class Curvature:
    def __init__(self, net, layers):
        self.net, self.layers, self.total = net, layers, 0.0

    def update(self, loader):
        self.net.eval()
        for images, _ in loader:
            self.net.zero_grad()
            logits = self.net(images.cuda())
            for part in sensitivities(logits, self.layers):
                self.total += sum(g.detach().square().sum().item() for g in part)

    def accuracy(self, loader):
        self.net.eval()
        right = 0
        for images, labels in loader:
            logits = self.net(images.cuda())  # expect: eval-without-no-grad
            right += (logits.argmax(1).cpu() == labels).sum().item()
        return right


def importance(net, samples):
    net.eval()
    weights = {}
    for x in samples:
        net.zero_grad()
        answer = net(x.cuda())
        note(weights, net, answer)
    return weights


def note(weights, net, answer):
    answer.max().backward()
    for name, p in net.named_parameters():
        weights[name] = weights.get(name, 0.0) + p.grad.detach().abs().mean().item()
