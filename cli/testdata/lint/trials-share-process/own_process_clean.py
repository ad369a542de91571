"""Each trial in a process of its own, and Ray as the backend."""

import subprocess
import sys

import optuna
from transformers import Trainer


def objective(trial):
    rate = trial.suggest_float("lr", 1e-6, 1e-3)
    done = subprocess.run([sys.executable, "train.py", str(rate)], capture_output=True, text=True)
    return float(done.stdout)


def with_ray(make, rows):
    trainer = Trainer(model_init=make, train_dataset=rows)
    return trainer.hyperparameter_search(n_trials=20, backend="ray")


optuna.create_study().optimize(objective, n_trials=50)
