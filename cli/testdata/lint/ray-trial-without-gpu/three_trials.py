"""Trials that compute on a card and ask for processors only."""

import tensorflow as tf
import torch
from ray import tune


def move(batch):
    return {k: v.to("cuda") for k, v in batch.items()}


def finetune(config):
    model = config["build"]()
    optimizer = torch.optim.AdamW(model.parameters(), config["lr"])
    for batch in config["loader"]:
        model(**move(batch)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def plain(space):
    return tune.run(  # expect: ray-trial-without-gpu
        finetune, config=space, resources_per_trial={"cpu": 2, "memory": 4 * 1024**3}
    )


class Digits(tune.Trainable):
    def setup(self, config):
        self.net = torch.nn.Linear(784, 10).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), config["lr"])

    def step(self):
        loss = self.net(torch.rand(64, 784, device="cuda")).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}


def of_a_class(space):
    held = tune.with_resources(Digits, dict(cpu=4, memory=2 * 1024**3))
    tuner = tune.Tuner(held, param_space=space)  # expect: ray-trial-without-gpu
    return tuner.fit()


def keras_trial(config):
    with tf.device("/GPU:0"):
        model = tf.keras.Sequential([tf.keras.layers.Dense(config["units"])])
        model.compile("adam", "mse")
        model.fit(config["x"], config["y"])


ASKED = {"cpu": 4, "memory": 8 * 1024**3}


def of_keras(space):
    return tune.run(  # expect: ray-trial-without-gpu
        keras_trial, config=space, resources_per_trial=ASKED
    )
