"""Models built again and again: Keras loops, Optuna objectives, Ray tasks."""
import numpy as np
import optuna
import ray
import tensorflow as tf
import torch
from sklearn.model_selection import KFold
from transformers import AutoModelForSequenceClassification, Trainer

features = np.load("features.npy")
settings = {"lr": 1e-3}


def build(units):
    model = tf.keras.Sequential([tf.keras.layers.Dense(units)])
    model.compile("sgd", "mse")
    return model


def cross_validate(x, y):
    for train, test in KFold(5).split(x):
        model = build(64)  # expect: keras-model-in-loop
        model.fit(x[train], y[train])


def sweep(x, y):
    for units in (32, 64):
        net = tf.keras.Sequential([tf.keras.layers.Dense(units)])  # hint: keras-model-in-loop
        net.fit(x, y)


def sweep_cleared(x, y):
    for units in (32, 64):
        tf.keras.backend.clear_session()
        net = build(units)  # hint: keras-loop-in-one-process
        net.fit(x, y)


def score(model, samples):
    out = []
    for sample in samples:
        out.append(model.predict(sample))  # hint: keras-predict-in-loop
    return out


def objective(trial):
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")  # expect: trials-share-process
    trainer = Trainer(model=model)
    trainer.train()
    return trainer.evaluate()["eval_loss"]


study = optuna.create_study()
study.optimize(objective, n_trials=10)
study.optimize(objective, n_trials=10, gc_after_trial=True)
best = Trainer(model_init=build).hyperparameter_search(n_trials=4)  # expect: trials-share-process


@ray.remote
def column_mean(i):
    return features[:, i].mean() * settings["lr"]  # expect: ray-captures-large-object


@ray.remote
class Scorer:
    def score(self, i):
        return features[i].sum()  # expect: ray-captures-large-object


@ray.remote
def given(data, i):
    return data[:, i].mean()


direct = [given.remote(features, i) for i in range(100)]  # expect: ray-passes-large-object
stored = ray.put(features)
by_reference = [given.remote(stored, i) for i in range(100)]
