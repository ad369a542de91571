"""Outputs that are few: a loop that stops when it has enough, one number a sample."""

import torch


@torch.no_grad()
def neighbours(encoder, loader, device="cuda", limit=5000):
    rows = []
    for x, _ in loader:
        rows.append(encoder(x.to(device)))
        if sum(r.size(0) for r in rows) >= limit:
            break
    return torch.cat(rows)[:limit]


@torch.no_grad()
def some(net, loader, device="cuda", steps=20):
    shown = []
    for i, (x, _) in enumerate(loader):
        if i >= steps:
            break
        shown.append(net(x.to(device)))
    return torch.cat(shown)


class Detector:
    def __init__(self, model, device="cuda"):
        self.model, self.device = model.to(device), device

    @torch.no_grad()
    def threshold(self, loader):
        self.model.eval()
        errors = []
        for images, _ in loader:
            images = images.to(self.device)
            err = self.model(images)
            errors.append(err)  # hint: outputs-kept-on-card
        return torch.quantile(torch.cat(errors), 0.75)


@torch.no_grad()
def energies(model, loader):
    model.eval()
    kept = []
    for x, _ in loader:
        energy = model(x.cuda())
        kept.append(energy)  # hint: outputs-kept-on-card
    return torch.cat(kept)


@torch.no_grad()
def pictures(model, loader):
    model.eval()
    kept = []
    for x, _ in loader:
        restored = model(x.cuda())
        kept.append(restored)  # expect: outputs-kept-on-card
    return torch.cat(kept)
