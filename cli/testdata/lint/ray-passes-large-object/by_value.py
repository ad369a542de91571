"""Large objects that go to every task by value."""

import numpy as np
import pandas as pd
import ray


@ray.remote
def fold_score(table, fold):
    return table[table["fold"] != fold]["price"].mean()


def cross_validate(path, folds):
    table = pd.read_parquet(path)
    return ray.get(
        [fold_score.remote(table, k) for k in range(folds)]  # expect: ray-passes-large-object
    )


@ray.remote(num_gpus=1)
class Worker:
    def epoch(self, pixels, rate):
        return rate * pixels[0].mean()


class Sweep:
    def __init__(self, count):
        self.workers = [Worker.remote() for _ in range(count)]

    def run(self, rates):
        pixels = np.load("pixels.npy")
        waiting = []
        for worker, rate in zip(self.workers, rates):
            waiting.append(worker.epoch.remote(pixels, rate))  # expect: ray-passes-large-object
        return ray.get(waiting)


def read_noise():
    noise = np.fromfile("noise.bin")
    return noise


def with_helper(rates):
    noise = read_noise()
    found = {}
    for rate in rates:
        found[rate] = ray.get(fold_score.remote(noise, rate))  # expect: ray-passes-large-object
    return found
