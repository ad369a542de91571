"""Losses that are given back, learners that adapt, hooks that are taken off, modes by a literal."""

import torch
from torch import nn


class Perceptual(nn.Module):
    def __init__(self, vgg):
        super().__init__()
        self.vgg = vgg
        self.vgg.eval()

    def perceptual_loss(self, real, fake):
        total = 0.0
        for i in range(real.shape[2]):
            wanted = self.vgg(real[:, :, i])  # hint: eval-without-no-grad
            found = self.vgg(fake[:, :, i])
            total = total + (wanted.detach() - found).abs().mean()
        return total


class Tap:
    def __init__(self, model):
        self.seen = []
        self.handles = [m.register_forward_hook(self.keep) for m in model.children()]

    def keep(self, module, inputs, output):
        self.seen.append(output)  # hint: hook-keeps-tensors

    def close(self):
        for handle in self.handles:
            handle.remove()


class Open:
    def __init__(self, model):
        self.seen = []
        for m in model.children():
            m.register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.seen.append(output)  # expect: hook-keeps-tensors


def by_mode(model, batches, optimizer, with_text):
    modes = ["sound", "sight", "text"] if with_text else ["sound", "sight"]
    for batch in batches:
        losses = {}
        for mode in modes:
            loss = model(batch, mode)
            losses[mode] = loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print({k: v.item() for k, v in losses.items()})


def another(build, first, second, scenes):
    model = build(first)
    model.eval()
    print(sum(p.numel() for p in model.parameters()))
    model = build(second)
    for x in scenes:
        print(model(x.cuda()).sum().item())


def misspelt(teacher, pictures):
    teacher.eval()
    for picture in pictures:
        with torch.no_grad:
            print(teacher(picture.cuda()).sum().item())
