"""A waveform fitted by sines of a network with LBFGS: the closure runs several times a step."""

import torch
from torch import nn

torch.manual_seed(34)
torch.set_num_threads(1)


class Sine(nn.Module):
    def __init__(self, a, b, first=False):
        super().__init__()
        self.line = nn.Linear(a, b)
        bound = 1 / a if first else (6 / a) ** 0.5 / 20
        nn.init.uniform_(self.line.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(20 * self.line(x))


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(Sine(1, 192, True), *[Sine(192, 192) for _ in range(6)])
        self.out = nn.Linear(192, 1)

    def forward(self, t):
        return self.out(self.body(t))


time = torch.linspace(-1, 1, 36000)[:, None]
sound = torch.sin(90 * time) * torch.exp(-3 * time**2) + 0.1 * torch.randn(36000, 1)
model = Wave()
opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=5)
for step in range(2):

    def closure():
        opt.zero_grad()
        loss = (model(time) - sound).pow(2).mean()
        loss.backward()
        print("loss %.8g" % loss.item(), flush=True)
        return loss

    opt.step(closure)
