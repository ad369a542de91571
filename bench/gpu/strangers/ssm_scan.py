"""A state-space sequence model: the recurrence is an autograd function of its own, which saves its
states; gated blocks, RMS norm, a classifier over the mean."""

# tiny: --d 8 --state 2 --layers 2 --batch 3 --seq 12 --device cpu
import argparse

import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--d", type=int, default=256)
p.add_argument("--state", type=int, default=8)
p.add_argument("--layers", type=int, default=4)
p.add_argument("--batch", type=int, default=32)
p.add_argument("--seq", type=int, default=160)
p.add_argument("--device", default="cuda")
o = p.parse_args()
torch.manual_seed(11)


class Scan(torch.autograd.Function):
    """h[t] = a[t] * h[t-1] + u[t]"""

    @staticmethod
    def forward(ctx, a, u):
        h, states = torch.zeros_like(u[:, 0]), []
        for t in range(u.shape[1]):
            h = a[:, t] * h + u[:, t]
            states.append(h)
        out = torch.stack(states, 1)
        ctx.save_for_backward(a, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        a, out = ctx.saved_tensors
        ga, gu = torch.empty_like(a), torch.empty_like(a)
        carry = torch.zeros_like(grad[:, 0])
        for t in range(a.shape[1] - 1, -1, -1):
            carry = carry + grad[:, t]
            gu[:, t] = carry
            ga[:, t] = carry * out[:, t - 1] if t else 0.0
            carry = carry * a[:, t]
        return ga, gu


class Mixer(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.norm = nn.RMSNorm(d)
        self.inp, self.gate, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.dt, self.bc = nn.Linear(d, d), nn.Linear(d, 2 * n)
        self.loga = nn.Parameter(torch.rand(d, n))

    def forward(self, x):
        y = self.norm(x)
        u, z = self.inp(y), torch.nn.functional.silu(self.gate(y))
        dt = torch.nn.functional.softplus(self.dt(y))
        b, c = self.bc(y).chunk(2, -1)
        a = torch.exp(-dt[..., None] * self.loga.exp())
        h = Scan.apply(a, (dt * u)[..., None] * b[:, :, None, :])
        return x + self.out((h * c[:, :, None, :]).sum(-1) * z)


net = nn.Sequential(
    nn.Linear(16, o.d), *[Mixer(o.d, o.state) for _ in range(o.layers)], nn.RMSNorm(o.d)
).to(o.device)
head = nn.Linear(o.d, 10).to(o.device)
opt = torch.optim.Adam([*net.parameters(), *head.parameters()], 1e-3)
g = torch.Generator().manual_seed(1)
for step in range(10):
    x = torch.randn(o.batch, o.seq, 16, generator=g).to(o.device)
    y = torch.randint(0, 10, (o.batch,), generator=g).to(o.device)
    opt.zero_grad()
    loss = nn.functional.cross_entropy(head(net(x).mean(1)), y)
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
