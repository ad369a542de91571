"""A class whose method makes its optimizer."""

import torch


class Trainer:
    def __init__(self, model, rate):
        self.model, self.rate = model, rate

    def fit(self, loader):
        adam = torch.optim.Adam(self.model.parameters(), lr=self.rate)
        for batch in loader:
            out = self.model(**batch)
            out.loss.backward()
            adam.step()  # expect: gradients-never-cleared
        return self.model.state_dict()
