"""Trials of an example hold nothing: packing them costs no memory."""

import numpy as np
import torch
from ray import tune


def report(config):
    return config["mean"] + config["spread"] * np.random.randn()


def arithmetic(config):
    for _ in range(30):
        tune.report(loss=report(config))


def training(config):
    net = torch.nn.Linear(4096, 4096).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    for _ in range(100):
        loss = net(torch.randn(512, 4096).cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tune.report(loss=loss.item())


space = {"mean": tune.uniform(0, 1), "spread": tune.uniform(0, 1)}
tune.run(arithmetic, config=space, num_samples=20)  # hint: ray-trial-without-resources
rates = {"lr": tune.loguniform(1e-5, 1e-2)}
tune.run(training, config=rates, num_samples=20)  # expect: ray-trial-without-resources
