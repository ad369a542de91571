"""An actor that reads a table of the driver: it is pickled with the class."""

import numpy as np
import ray
import torch


@ray.remote(num_gpus=1)
class Member:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.net = torch.nn.Linear(512, 10).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def fit(self, rounds):
        features = np.load("features.npy", mmap_mode="r")
        labels = np.load("labels.npy", mmap_mode="r")
        for _ in range(rounds):
            pick = np.random.randint(0, len(features), 256)
            x = torch.from_numpy(features[pick]).cuda()
            loss = torch.nn.functional.cross_entropy(
                self.net(x), torch.from_numpy(labels[pick]).cuda()
            )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def main():
    ray.init()
    members = [Member.remote(seed) for seed in range(8)]
    print(ray.get([m.fit.remote(1000) for m in members]))
