"""Loops that stop at once or after a few batches, the views of one sample, the names of files."""

import torch
from tensorflow import keras
from torch import nn
from torch.utils.data import DataLoader, Dataset


def build():
    model = keras.Sequential([keras.layers.Dense(8)])
    model.compile("adam", "mse")
    return model


def folds(parts, x, y):
    for train, test in parts:
        break
        model = build()
        model.fit(x[train], y[train])
        print(model.evaluate(x[test], y[test]))


def time_it(model, loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()  # hint: gradients-never-cleared
        if i == 3:
            break


def step_of_views(model, inputs):
    for k, view in enumerate(inputs):
        logits, loss = model(view)
        loss.backward()
        if k == 0:
            preds = logits
        else:
            preds = torch.cat([preds, logits], dim=0)
    return preds


class Named(Dataset):
    def __init__(self, listing):
        self.sample = []
        for item in open(listing):
            self.sample.append(item.strip())

    def __len__(self):
        return len(self.sample)

    def __getitem__(self, i):
        return nn.functional.one_hot(torch.tensor(len(self.sample[i])))


loader = DataLoader(Named("train.txt"), num_workers=4)  # hint: workers-copy-python-list
