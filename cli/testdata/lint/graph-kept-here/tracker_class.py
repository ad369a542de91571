import torch.nn.functional as F


class Tracker:
    def __init__(self):
        self.values = {}

    def record(self, **kwargs):
        for name, value in kwargs.items():
            self.values.setdefault(name, []).append(value)  # expect: graph-kept-here


def train(model, loader, optimizer):
    tracker = Tracker()
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tracker.record(loss=loss, lr=optimizer.param_groups[0]["lr"])  # expect: graph-kept-in-list
