"""Networks of an engine that somebody wrote: PyTorch brings the samples and no more."""

import ownengine.nn as nn
import ownengine.optim as optim
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST


class Digits(nn.Module):
    def __init__(self):
        self.first = nn.Linear(784, 128)
        self.last = nn.Linear(128, 10)

    def forward(self, x):
        return self.last(self.first(x))


model = Digits()
optimizer = optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.CrossEntropyLoss()
trainloader = DataLoader(MNIST("data", train=True), batch_size=64)
testloader = DataLoader(MNIST("data", train=False), batch_size=64)
for epoch in range(20):
    for images, labels in trainloader:
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for images, labels in testloader:
        loss = loss_fn(model(images), labels)  # hint: eval-without-no-grad
        print(loss.data)
