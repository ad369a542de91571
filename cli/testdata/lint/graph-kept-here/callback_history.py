"""Callback history: one mistake, and its right twin beside it."""

import torch


class History:
    def __init__(self):
        self.values = {}

    def on_step(self, name, value):
        self.values.setdefault(name, []).append(value)  # expect: graph-kept-here


class Runner:
    def __init__(self, model, opt, cb):
        self.model, self.opt, self.cb = model, opt, cb

    def fit(self, data):
        for x, y in data:
            loss = ((self.model(x) - y) ** 2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.cb.on_step("loss", loss)  # expect: graph-kept-in-list


Runner(torch.nn.Linear(2, 1), None, History()).fit([])


class RunnerClean:
    def __init__(self, model, opt, cb):
        self.model, self.opt, self.cb = model, opt, cb

    def fit(self, data):
        for x, y in data:
            loss = ((self.model(x) - y) ** 2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.cb.on_step("loss", loss.item())


RunnerClean(torch.nn.Linear(2, 1), None, History()).fit([])
