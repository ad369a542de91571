"""A checkpoint that is loaded instead of training; errors of what computes nothing."""

import torch
from nets import build, run_epoch


def step(model, optimizer, batch, device):
    loss = model(**{k: v.to(device) for k, v in batch.items()}).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(model, optimizer, loader, device):
    for batch in loader:
        step(model, optimizer, batch, device)


def instead(args, loader, test_loader):
    device = torch.device("cuda")
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    if args.checkpoint:
        checkpoint = torch.load(args.checkpoint)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    else:
        train(model, optimizer, loader, device)
    return run_epoch(model, test_loader, train=False)


def before(args, loader):
    device = torch.device("cuda")
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    if args.resume:
        checkpoint = torch.load(args.resume)  # expect: checkpoint-without-map-location
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, loader, device)


class Moves:
    def to(self, device):
        errors = []
        for name, part in self.__dict__.items():
            try:
                part.to(device=device)
            except Exception as e:
                errors.append(e)
        if errors:
            raise RuntimeError("\n".join(str(e) for e in errors))
