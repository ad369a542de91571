"""Trials that are packed by processors and cards."""

import torch
import xgboost
from ray import tune
from transformers import Trainer, TrainingArguments


def train(config):
    model = torch.nn.Linear(64, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), config["lr"])
    for x, y in config["loader"]:
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def plain(space):
    return tune.run(  # hint: ray-trial-without-memory
        train, config=space, resources_per_trial={"cpu": 4, "gpu": 1}
    )


class Boosted:
    def __init__(self, table):
        self.table = table

    def trial(self, config):
        return xgboost.train(config, self.table)

    def search(self, space):
        held = tune.with_resources(self.trial, {"cpu": 8})
        tuner = tune.Tuner(held, param_space=space)  # hint: ray-trial-without-memory
        return tuner.fit().get_best_result()


def finetune(config):
    args = TrainingArguments("out", learning_rate=config["lr"])
    Trainer(model=config["model"], args=args, train_dataset=config["rows"]).train()


def with_trainer(space):
    tuner = tune.Tuner(  # hint: ray-trial-without-memory
        tune.with_resources(finetune, resources={"cpu": 2, "gpu": 0.5}),
        param_space=space,
    )
    return tuner.fit()
