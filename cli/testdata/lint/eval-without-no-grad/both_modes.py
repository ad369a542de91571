"""One function trains and evaluates. The call that evaluates builds graphs too."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def run_epoch(model, loader, optimizer=None):
    training = optimizer is not None
    model.train(training)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)  # expect: eval-without-no-grad
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Runner:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def one_pass(self, loader, train):
        if train:
            self.model.train()
        else:
            self.model.eval()
        for x, y in loader:
            out = self.model(x)  # expect: eval-without-no-grad
            if train:
                loss = F.cross_entropy(out, y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    def steered(self, loader, train):
        self.model.train(train)
        with torch.set_grad_enabled(train):
            for x, y in loader:
                loss = F.cross_entropy(self.model(x), y)
                if train:
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()


def main(net, train_set, val_set):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    runner = Runner(torch.nn.Linear(4, 4))
    for _ in range(10):
        run_epoch(model, DataLoader(train_set), optimizer)
        run_epoch(model, DataLoader(val_set))
        runner.one_pass(DataLoader(train_set), True)
        runner.one_pass(DataLoader(val_set), False)
        runner.steered(DataLoader(train_set), True)
        runner.steered(DataLoader(val_set), False)


main(None, [], [])
