"""A loader that is made once, workers that end with their round, and a handful of loaders."""

from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, Subset


def made_once(model, optimizer, data, epochs):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 64, sampler=sampler, num_workers=4, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


class Curriculum:
    def __init__(self, model, optimizer, data):
        self.model, self.optimizer, self.data = model, optimizer, data

    def train(self, rounds):
        for part in range(rounds):
            easy = Subset(self.data, range((part + 1) * 1000))
            for x, y in DataLoader(easy, batch_size=32, num_workers=2):
                loss = F.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


def two_sizes(model, optimizer, data):
    for size in (32, 256):
        loader = DataLoader(data, size, num_workers=4, persistent_workers=True)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
