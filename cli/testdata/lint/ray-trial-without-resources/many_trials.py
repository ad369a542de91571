"""A grid of a dozen trials, and no resources for each."""

import torch
from nets import build, fit
from ray import tune


def trial(config):
    model = build(config["width"])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(10):
        tune.report(accuracy=fit(model, optimizer))


space = {
    "lr": tune.grid_search([0.001, 0.003, 0.01, 0.1]),
    "width": tune.grid_search([64, 256, 1024]),
}
tune.run(trial, config=space)  # expect: ray-trial-without-resources
