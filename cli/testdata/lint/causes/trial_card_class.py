import torch
from ray import tune
from ray.tune import Tuner, with_resources

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class T(tune.Trainable):
    def setup(self, config):
        self.net = torch.nn.Linear(3, 4).to("cuda:0")

    def step(self):
        return {"loss": 0.0}


tuner = Tuner(with_resources(T, {"cpu": 2, "memory": 2 * 1024**3}), param_space={"lr": 1})  # expect: ray-trial-without-gpu
tuner.fit()
