"""A record of the first steps only."""

import torch


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def fit(self, loader):
        torch.cuda.memory._record_memory_history()
        for i, batch in enumerate(loader):
            self.model(**batch).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if i == 5:
                torch.cuda.memory._dump_snapshot("steps.pickle")
                torch.cuda.memory._record_memory_history(enabled=None)
