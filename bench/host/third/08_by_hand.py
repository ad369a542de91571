"""No optimizer object: weights in a list, momentum and decay written out, under no_grad."""

import torch
from torch import nn

torch.manual_seed(9)
torch.set_num_threads(1)


class Mix(nn.Module):
    def __init__(self, patches=64, width=128):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 128), nn.GELU(), nn.Linear(128, patches))
        self.along = nn.Sequential(nn.Linear(width, 512), nn.GELU(), nn.Linear(512, width))

    def forward(self, x):
        x = x + self.across(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.n2(x))


net = nn.Sequential(nn.Linear(48, 128), *[Mix() for _ in range(5)], nn.LayerNorm(128))
head = nn.Linear(128, 10)
weights = [*net.parameters(), *head.parameters()]
velocity = [torch.zeros_like(w) for w in weights]
for step in range(4):
    x, y = torch.randn(64, 64, 48), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(head(net(x).mean(1)), y)
    loss.backward()
    with torch.no_grad():
        for w, v in zip(weights, velocity):
            v.mul_(0.9).add_(w.grad + 1e-4 * w)
            w -= 0.05 * v
            w.grad = None
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
