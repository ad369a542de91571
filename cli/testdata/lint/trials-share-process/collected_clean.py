"""Optuna collects behind each trial."""

import optuna
from nets import Net
from transformers import Trainer, TrainingArguments


def objective(trial):
    args = TrainingArguments("out", learning_rate=trial.suggest_float("lr", 1e-6, 1e-3))
    trainer = Trainer(model=Net(), args=args)
    trainer.train()
    return trainer.evaluate()["eval_loss"]


optuna.create_study().optimize(objective, n_trials=50, gc_after_trial=True)
