"""Callback history, done right."""

import torch


class History:
    def __init__(self):
        self.values = {}

    def on_step(self, name, value):
        self.values.setdefault(name, []).append(value)


class Runner:
    def __init__(self, model, opt, cb):
        self.model, self.opt, self.cb = model, opt, cb

    def fit(self, data):
        for x, y in data:
            loss = ((self.model(x) - y) ** 2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.cb.on_step("loss", loss.item())


Runner(torch.nn.Linear(2, 1), None, History()).fit([])
