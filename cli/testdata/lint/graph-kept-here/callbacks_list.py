import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


class Recorder:
    def __init__(self):
        self.values = []

    def on_batch_end(self, step, loss):
        self.values.append((step, loss))  # expect: graph-kept-here


class Loop:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def fit(self, loader):
        for step, (x, y) in enumerate(loader):
            loss = crit(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            for cb in self.callbacks:
                cb.on_batch_end(step, loss)  # expect: graph-kept-in-list


Loop([Recorder()]).fit([])
