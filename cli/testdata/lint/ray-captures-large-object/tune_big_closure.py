"""Tune big closure: one mistake, and its right twin beside it."""

import numpy as np
from ray import tune

data = np.load("features.npy")


def trainable(config):
    score = (data * config["w"]).sum()  # expect: ray-captures-large-object
    tune.report({"score": score})


tune.Tuner(tune.with_resources(trainable, {"cpu": 2}), param_space={"w": tune.uniform(0, 1)}).fit()
