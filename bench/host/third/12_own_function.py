"""An autograd.Function of its own (a gated norm) inside one-dimensional blocks."""

import torch
from torch import nn

torch.manual_seed(15)
torch.set_num_threads(1)


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        r = (a * a).mean(1, keepdim=True).add(1e-6).rsqrt()
        s = torch.sigmoid(b)
        ctx.save_for_backward(a, s, r)
        return a * r * s

    @staticmethod
    def backward(ctx, g):
        a, s, r = ctx.saved_tensors
        n = a * r
        gn = g * s
        ga = r * (gn - n * (gn * n).mean(1, keepdim=True))
        return ga, g * n * s * (1 - s)


class Block(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.both = nn.Conv1d(c, 2 * c, 5, padding=2 * dilation, dilation=dilation)
        self.back = nn.Conv1d(c, c, 1)

    def forward(self, x):
        a, b = self.both(x).chunk(2, 1)
        return x + self.back(Gate.apply(a, b))


class Wave(nn.Module):
    def __init__(self, c=40):
        super().__init__()
        self.start = nn.Conv1d(1, c, 1)
        self.blocks = nn.ModuleList(Block(c, 2**i) for i in range(7))
        self.end = nn.Conv1d(c, 1, 1)

    def forward(self, x):
        x = self.start(x)
        for block in self.blocks:
            x = block(x)
        return self.end(x)


net = Wave()
opt = torch.optim.RAdam(net.parameters(), 1e-3)
for step in range(3):
    clean = torch.sin(torch.rand(24, 1, 1) * torch.arange(3000)[None, None] / 9)
    loss = (net(clean + 0.2 * torch.randn_like(clean)) - clean).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
