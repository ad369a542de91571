import csv

import torch
import torch.nn as nn
from mine import make_loader


class CSVLogger:
    def __init__(self, path):
        self.path = path
        self.rows = []

    def log(self, **metrics):
        self.rows.append(metrics)  # expect: graph-kept-here

    def write(self):
        with open(self.path, "w") as f:
            w = csv.DictWriter(f, self.rows[0])
            w.writerows(self.rows)


class Fitter:
    def __init__(self, model, logger):
        self.model, self.logger = model, logger
        self.opt = torch.optim.Adam(model.parameters())
        self.crit = nn.BCEWithLogitsLoss()

    def one(self, x, y):
        self.opt.zero_grad()
        loss = self.crit(self.model(x), y)
        loss.backward()
        self.opt.step()
        return loss

    def fit(self, loader):
        for x, y in loader:
            loss = self.one(x.cuda(), y.cuda())
            self.logger.log(loss=loss, lr=self.opt.param_groups[0]["lr"])  # expect: graph-kept-in-list
        self.logger.write()


Fitter(nn.Linear(5, 1).cuda(), CSVLogger("log.csv")).fit(make_loader())
