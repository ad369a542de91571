"""A figure of every epoch, in a class whose helper draws."""

import matplotlib.pyplot as plt


class Trainer:
    def __init__(self, net, optimizer, criterion):
        self.net, self.optimizer, self.criterion = net, optimizer, criterion

    def draw(self, epoch, losses):
        fig = plt.figure(figsize=(8, 4))  # expect: figures-not-closed
        plt.plot(losses)
        fig.savefig(f"loss_{epoch}.png")

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            losses = []
            for x, y in loader:
                loss = self.criterion(self.net(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
            self.draw(epoch, losses)
