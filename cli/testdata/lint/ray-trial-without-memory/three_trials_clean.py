"""Trials that say how many bytes of the host they take."""

import torch
import xgboost
from ray import tune

GIB = 1024**3


def train(config):
    model = torch.nn.Linear(64, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), config["lr"])
    for x, y in config["loader"]:
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def plain(space):
    asked = {"cpu": 4, "gpu": 1, "memory": 12 * GIB}
    return tune.run(train, config=space, resources_per_trial=asked)


class Boosted:
    def __init__(self, table):
        self.table = table

    def trial(self, config):
        return xgboost.train(config, self.table)

    def search(self, space):
        held = tune.with_resources(self.trial, {"cpu": 8, "memory": 6 * GIB})
        return tune.Tuner(held, param_space=space).fit().get_best_result()


def by_keyword(space):
    held = tune.with_resources(train, resources={"gpu": 0.5, "memory": 4 * GIB})
    return tune.Tuner(held, param_space=space).fit()
