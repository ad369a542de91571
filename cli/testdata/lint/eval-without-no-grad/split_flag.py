"""Training and validation in one loop over the splits, told apart by a flag."""

from torch import nn


def run(net, loaders, optimizer, epochs, device="cuda"):
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        for split, loader in loaders.items():
            learning = split == "train"
            net.train(learning)
            right, seen = 0, 0
            for x, y in loader:
                x, y = x.to(device), y.to(device)
                out = net(x)  # expect: eval-without-no-grad
                if learning:
                    optimizer.zero_grad()
                    criterion(out, y).backward()
                    optimizer.step()
                right += (out.argmax(1) == y).sum().item()
                seen += len(y)
            print(epoch, split, right / seen)
