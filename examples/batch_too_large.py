"""A batch that does not fit: the activations of a small convolutional network grow with the batch,
the weights do not.

A smaller micro-batch with the same effective batch is the cure; `memroom run --fit` applies it
without editing this file.
"""

import argparse

import torch
from torch import nn


class Net(nn.Module):
    """A few convolutions at full resolution: much activation memory for few weights."""

    def __init__(self, channels):
        super().__init__()
        layers = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
        for _ in range(3):
            layers += [
                nn.Conv2d(channels, channels, 3, padding=1),
                nn.GroupNorm(4, channels),
                nn.ReLU(),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Net(args.channels).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(1, args.steps + 1):
        images = torch.randn(args.batch, 3, args.size, args.size, device=device)
        labels = torch.randint(0, 10, (args.batch,), device=device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print("done")


if __name__ == "__main__":
    main()
