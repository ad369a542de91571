"""The same study, which clears the session before each model."""

import keras
import optuna
from data import held_out, train


def objective(trial):
    keras.backend.clear_session()
    units = trial.suggest_int("units", 16, 256)
    model = keras.Sequential([keras.layers.Dense(units, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(*train, epochs=5, verbose=0)
    return model.evaluate(*held_out, verbose=0)


study = optuna.create_study()
study.optimize(objective, n_trials=100)
