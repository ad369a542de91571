"""A group of micro-batches is few rounds; several lists of one loop are one story."""

import torch
import torch.nn.functional as F


class Trainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer

    def one(self, batch, outputs):
        out = self.net(batch["x"])
        outputs.append(out)
        (F.mse_loss(out, batch["y"]) / 4).backward()

    def group(self, batch_group):
        outputs = []
        self.optimizer.zero_grad()
        for batch in batch_group:
            self.one(batch, outputs)
        self.optimizer.step()
        return outputs

    def minimax(self, x, y, num_inner_steps):
        seen = []
        for _ in range(num_inner_steps):
            out = self.net(x)
            self.optimizer.zero_grad()
            F.mse_loss(out, y).backward()
            self.optimizer.step()
            seen.append(out)
        return torch.stack(seen).detach()

    def whole(self, loader):
        seen = []
        for x, y in loader:
            out = self.net(x)
            self.optimizer.zero_grad()
            F.mse_loss(out, y).backward()
            self.optimizer.step()
            seen.append(out)  # expect: graph-kept-in-list
        return torch.cat(seen).detach()


def filled(net, loader, device="cuda"):
    net.eval()
    series, holes = [], []
    with torch.no_grad():
        for x in loader:
            whole, hole = net(x.to(device))
            series.append(whole)  # expect: outputs-kept-on-card
            holes.append(hole)  # hint: outputs-kept-on-card
    return torch.cat(series).cpu(), torch.cat(holes).cpu()
