"""Trials and what they drag along."""
import pandas as pd
import torch
from ray import tune

table = pd.read_csv("data.csv")


def train(config):
    model = torch.nn.Linear(len(table), 1)  # expect: ray-captures-large-object
    return {"loss": float(model(torch.zeros(len(table)))[0])}


def train_with(config, data=None):
    return {"loss": len(data)}


tune.run(train, config={"lr": tune.loguniform(1e-4, 1e-2)}, num_samples=50)  # expect: ray-trial-without-resources
tune.run(train_with, resources_per_trial={"cpu": 4, "gpu": 1})  # hint: ray-trial-without-memory
tune.run(tune.with_parameters(train_with, data=table), resources_per_trial={"cpu": 4, "memory": 8 * 1024**3})
tuner = tune.Tuner(tune.with_resources(tune.with_parameters(train_with, data=table), {"cpu": 2, "memory": 4 * 1024**3}))
tune.Tuner(tune.with_resources(train_with, resources={"cpu": 2, "memory": 4 * 1024**3}))
settings = {"resources_per_trial": {"cpu": 1, "memory": 2**30}}
tune.run(train_with, **settings)
tune.run("registered elsewhere", num_samples=2)
