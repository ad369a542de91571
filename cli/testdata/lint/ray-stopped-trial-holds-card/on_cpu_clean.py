"""Trials that are stopped early and hold no card."""

import lightgbm
from ray import tune
from ray.tune.schedulers import ASHAScheduler


def train(config):
    data = lightgbm.Dataset("train.bin")
    lightgbm.train(config, data, callbacks=[lightgbm.early_stopping(10)])


tune.run(
    train,
    config={"num_leaves": tune.choice([31, 63, 127])},
    scheduler=ASHAScheduler(metric="auc", mode="max"),
    resources_per_trial={"cpu": 8, "gpu": 0, "memory": 4 * 1024**3},
)
