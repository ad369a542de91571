"""A class that names its card once and forgets it once."""

import torch


class Trainer:
    def __init__(self, model, classes):
        self.model = model.to("cuda:1")
        self.criterion = torch.nn.CrossEntropyLoss(
            weight=torch.ones(classes).cuda()  # expect: default-card
        )
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self, x, y):
        loss = self.criterion(self.model(x.to("cuda:1")), y.to("cuda:1"))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
