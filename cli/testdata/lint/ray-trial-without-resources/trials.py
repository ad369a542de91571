"""Trials of Ray: resources that come through two variables, one trial alone, many of them."""

import torch
from ray import tune
from ray.train import RunConfig


def train(config, data=None):
    return {"loss": float(torch.zeros(1)[0])}


SPACE = {"lr": tune.loguniform(1e-4, 1e-2)}
sized = tune.with_resources(train, {"cpu": 0.5, "memory": 2**30})
given = tune.with_parameters(sized, data=[1])
tune.Tuner(given, param_space=SPACE, tune_config=tune.TuneConfig(num_samples=50)).fit()

run = RunConfig()
alone = tune.Tuner(train, param_space={"lr": 1e-3})  # hint: ray-trial-without-resources
settings = tune.TuneConfig(num_samples=50)
bare = tune.with_parameters(train, data=[1])
many = tune.Tuner(bare, tune_config=settings)  # expect: ray-trial-without-resources
