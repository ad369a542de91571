"""Trials of a study one after another in one process."""

import lightning as L
import optuna
from nets import Net
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments


def objective(trial):
    rate = trial.suggest_float("lr", 1e-6, 1e-3, log=True)
    args = TrainingArguments("out", learning_rate=rate, per_device_train_batch_size=8)
    trainer = Trainer(model=Net(), args=args)  # expect: trials-share-process
    trainer.train()
    return trainer.evaluate()["eval_loss"]


def lightning_objective(trial):
    net = Net(trial.suggest_int("width", 64, 1024))
    trainer = L.Trainer(max_epochs=3)  # expect: trials-share-process
    trainer.fit(net)
    return trainer.callback_metrics["val_loss"].item()


def main():
    study = optuna.create_study(direction="minimize")
    study.optimize(objective, n_trials=50)
    optuna.create_study().optimize(lightning_objective, n_trials=20)


class Search:
    def __init__(self, rows):
        self.trainer = Trainer(model_init=self.make, train_dataset=rows)

    def make(self):
        return AutoModelForSequenceClassification.from_pretrained("roberta-base")

    def best(self):
        return self.trainer.hyperparameter_search(n_trials=20)  # expect: trials-share-process
