"""Trials on cards that all run to their end."""

import torch
from ray import tune
from ray.tune.schedulers import FIFOScheduler


def train(config):
    model = torch.nn.Linear(64, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), config["lr"])
    for _ in range(100):
        loss = model(torch.randn(32, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tune.report({"loss": loss.item()})


def plain(space):
    return tune.run(
        train, config=space, resources_per_trial={"cpu": 2, "gpu": 1, "memory": 4 * 1024**3}
    )


class Search:
    def run(self, space):
        held = tune.with_resources(train, {"gpu": 0.5, "memory": 8 * 1024**3})
        config = tune.TuneConfig(scheduler=FIFOScheduler(), num_samples=20)
        return tune.Tuner(held, param_space=space, tune_config=config).fit()
