"""Put once; a path instead of its content; small things by value."""

import pandas as pd
import ray


@ray.remote
def fold_score(table, fold):
    return table[table["fold"] != fold]["price"].mean()


@ray.remote
def score_of_file(path, fold):
    table = pd.read_parquet(path)
    return table[table["fold"] != fold]["price"].mean()


def cross_validate(path, folds):
    table = pd.read_parquet(path)
    ref = ray.put(table)
    return ray.get([fold_score.remote(ref, k) for k in range(folds)])


class Sweep:
    def __init__(self, path):
        self.path = path

    def run(self, folds):
        waiting = []
        for fold in range(folds):
            waiting.append(score_of_file.remote(self.path, fold))
        return ray.get(waiting)


def small_settings(folds, settings):
    return ray.get([score_of_file.remote(settings["path"], k) for k in range(folds)])
