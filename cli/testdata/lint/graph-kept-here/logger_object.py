import torch
from corpus import Corpus
from torch import nn
from torch.utils.data import DataLoader


class RunLog:
    def __init__(self):
        self.rows = []

    def write(self, **fields):
        self.rows.append(fields)  # expect: graph-kept-here


class Engine:
    def __init__(self, net, log):
        self.net, self.log = net, log
        self.opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
        self.crit = nn.CrossEntropyLoss()

    def one(self, x, y):
        err = self.crit(self.net(x), y)
        self.opt.zero_grad()
        err.backward()
        self.opt.step()
        self.log.write(step=self.step, err=err)  # expect: graph-kept-in-list

    def go(self, loader):
        for self.step, (x, y) in enumerate(loader):
            self.one(x.cuda(), y.cuda())


def main():
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
    log = RunLog()
    Engine(net, log).go(DataLoader(Corpus(), 64))
    print(len(log.rows))


main()


class EngineClean:
    def __init__(self, net, log):
        self.net, self.log = net, log
        self.opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
        self.crit = nn.CrossEntropyLoss()

    def one(self, x, y):
        err = self.crit(self.net(x), y)
        self.opt.zero_grad()
        err.backward()
        self.opt.step()
        self.log.write(step=self.step, err=err.item())

    def go(self, loader):
        for self.step, (x, y) in enumerate(loader):
            self.one(x.cuda(), y.cuda())


def main_clean():
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
    log = RunLog()
    EngineClean(net, log).go(DataLoader(Corpus(), 64))
    print(len(log.rows))


main_clean()
