"""Three trials of a grid: as many at once as somebody meant."""

import torch
from nets import build, fit
from ray import tune


def trial(config):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(10):
        tune.report(accuracy=fit(model, optimizer))


def few():
    space = {"lr": tune.grid_search([0.001, 0.01, 0.1])}
    return tune.run(trial, config=space)  # hint: ray-trial-without-resources
