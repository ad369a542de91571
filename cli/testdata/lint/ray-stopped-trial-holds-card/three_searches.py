"""Schedulers that stop trials on cards."""

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule


def train(config):
    model = torch.nn.Linear(64, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), config["lr"])
    for _ in range(100):
        loss = model(torch.randn(32, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tune.report({"loss": loss.item()})


def plain():
    tune.run(  # hint: ray-stopped-trial-holds-card
        train,
        config={"lr": tune.loguniform(1e-4, 1e-1)},
        num_samples=40,
        scheduler=ASHAScheduler(metric="loss", mode="min"),
        resources_per_trial={"cpu": 2, "gpu": 1, "memory": 4 * 1024**3},
    )


class Search:
    def __init__(self, space):
        self.space = space

    def run(self):
        held = tune.with_resources(train, {"gpu": 0.5, "memory": 8 * 1024**3})
        tuner = tune.Tuner(  # hint: ray-stopped-trial-holds-card
            held,
            param_space=self.space,
            tune_config=tune.TuneConfig(scheduler=ASHAScheduler(), num_samples=20),
        )
        return tuner.fit()


def by_median(space):
    rule = MedianStoppingRule(metric="loss", mode="min", grace_period=5)
    return tune.run(  # hint: ray-stopped-trial-holds-card
        train,
        config=space,
        scheduler=rule,
        resources_per_trial={"cpu": 4, "gpu": 1, "memory": 2 * 1024**3},
    )
