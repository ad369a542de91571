"""Trials that ask for their card, and one that needs none."""

import torch
from ray import tune


def finetune(config):
    model = config["build"]().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), config["lr"])
    for x, y in config["loader"]:
        loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def plain(space):
    return tune.run(
        finetune, config=space, resources_per_trial={"cpu": 2, "gpu": 1, "memory": 4 * 1024**3}
    )


class Search:
    def __init__(self, space):
        self.held = tune.with_resources(finetune, dict(cpu=4, gpu=0.5, memory=2 * 1024**3))
        self.space = space

    def run(self):
        return tune.Tuner(self.held, param_space=self.space).fit()


def on_processors(config):
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), config["lr"])
    for _ in range(100):
        loss = model(torch.rand(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def small(space):
    return tune.run(on_processors, config=space, resources_per_trial={"cpu": 1, "memory": 1024**3})
