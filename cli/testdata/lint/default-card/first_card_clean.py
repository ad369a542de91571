"""Everything goes to card 0, with a number and without."""

import torch


class Trainer:
    def __init__(self, model):
        self.model = model.cuda(0)
        self.optimizer = torch.optim.AdamW(model.parameters(), 2e-5)

    def step(self, x, y):
        loss = torch.nn.functional.mse_loss(self.model(x.cuda()), y.to("cuda:0"))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
