import torch
from torch import nn


class Recorder:
    def __init__(self):
        self.logits = []

    def on_batch_end(self, state):
        self.logits.append(state["logits"].detach().cpu())


class Loop:
    def __init__(self, model, callbacks):
        self.model = model
        self.callbacks = callbacks
        self.opt = torch.optim.SGD(model.parameters(), 0.01)

    def fire(self, name, state):
        for cb in self.callbacks:
            getattr(cb, name)(state)

    def run(self, loader):
        for x, y in loader:
            state = {"x": x.cuda(), "y": y.cuda()}
            state["logits"] = self.model(state["x"])
            state["loss"] = nn.functional.cross_entropy(state["logits"], state["y"])
            self.opt.zero_grad()
            state["loss"].backward()
            self.opt.step()
            self.fire("on_batch_end", state)


def main(loader):
    Loop(nn.Linear(10, 10).cuda(), [Recorder()]).run(loader)
