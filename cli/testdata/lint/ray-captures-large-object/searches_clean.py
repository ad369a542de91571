"""The same done right: nothing may be found here."""
import gc

import optuna
import ray
import tensorflow as tf
import torch
from transformers import AutoModelForSequenceClassification, Trainer


def build(units):
    model = tf.keras.Sequential([tf.keras.layers.Dense(units)])
    model.compile("sgd", "mse")
    return model


def train_once(x, y):
    model = build(64)
    for epoch in range(10):
        model.fit(x, y)


def ensemble(x):
    return [m.predict(x) for m in (build(1), build(2))]


def objective(trial):
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
    trainer = Trainer(model=model)
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    del model, trainer
    gc.collect()
    torch.cuda.empty_cache()
    return loss


optuna.create_study().optimize(objective, n_trials=10)


@ray.remote
def column_mean(path, i):
    import numpy as np

    features = np.load(path, mmap_mode="r")
    return features[:, i].mean()


means = [column_mean.remote("features.npy", i) for i in range(100)]
