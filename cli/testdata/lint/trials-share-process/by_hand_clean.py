"""The objective tidies up by itself."""

import gc

import lightning as L
import optuna
import torch
from nets import Net


def objective(trial):
    net = Net(trial.suggest_int("width", 64, 1024))
    trainer = L.Trainer(max_epochs=3)
    trainer.fit(net)
    loss = trainer.callback_metrics["val_loss"].item()
    del net, trainer
    gc.collect()
    torch.cuda.empty_cache()
    return loss


class Search:
    def run(self, trials):
        study = optuna.create_study()
        study.optimize(objective, n_trials=trials)
        return study.best_params
