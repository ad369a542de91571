"""A trainer that records from its beginning to its end."""

import torch


class Trainer:
    def __init__(self, model, rate):
        torch.cuda.memory._record_memory_history(  # expect: memory-history-on
            enabled="all", stacks="python"
        )
        self.model = model.cuda()
        self.optimizer = torch.optim.AdamW(model.parameters(), rate)

    def fit(self, loader):
        for batch in loader:
            self.model(**batch).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
