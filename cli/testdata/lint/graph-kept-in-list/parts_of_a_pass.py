"""Parts of one pass that are given back, ids of words, figures that another file draws."""

import matplotlib.pyplot as plt
import torch
from drawing import add_plot
from torch import nn


class Trainer:
    def poses(self, frames):
        outputs = {}
        for i in self.options.frame_ids[1:]:
            angle, shift = self.models["pose"](torch.cat([frames[0], frames[i]], 1))
            outputs[("angle", i)] = angle
            outputs[("shift", i)] = shift
        return outputs

    def fit(self, loader):
        for frames in loader:
            outputs = self.poses(frames)
            loss = sum(v.abs().mean() for v in outputs.values())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def encoded(net, loader):
    found = []
    for x in loader:
        found.append(net.encode(x.cuda()))  # expect: graph-kept-in-list
    return torch.cat(found)


def main(net: nn.Module, loader):
    net.cuda().eval()
    print(encoded(net, loader).mean().item())


def written(model, loader):
    found = []
    with torch.no_grad():
        for ids in loader:
            hidden = model.generate(ids.cuda(), max_new_tokens=64)
            found.append(hidden)  # hint: outputs-kept-on-card
    return found


def drawn(net, loader, optimizer, writer):
    for step, x in enumerate(loader):
        loss = net(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 0:
            plt.subplots()  # hint: figures-not-closed
            add_plot(writer, "loss", step)


main(nn.Linear(3, 3), [])
