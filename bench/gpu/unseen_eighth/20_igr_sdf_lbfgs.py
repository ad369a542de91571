# Fit a signed distance function to a point cloud (implicit geometric regularisation).
# The eikonal term needs the gradient of the network by its input, so there is a double
# backward. First a few Adam steps, then L-BFGS with a closure on a fixed sample.
import math

import torch
from torch import nn

torch.manual_seed(2020)
gpu = torch.cuda.is_available()
dev = "cuda" if gpu else "cpu"
N_SURFACE = 65536 if gpu else 128
N_SPACE = 65536 if gpu else 128
WIDTH, DEPTH, SKIP = (256, 7, 4) if gpu else (16, 4, 2)
ADAM_STEPS, LBFGS_STEPS = (8, 3) if gpu else (3, 2)


class SDF(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()
        for i in range(DEPTH):
            cin = 3 if i == 0 else WIDTH
            cout = WIDTH - 3 if i + 1 == SKIP else WIDTH
            lin = nn.Linear(cin, cout)
            nn.init.normal_(lin.weight, 0.0, math.sqrt(2 / cout))
            nn.init.zeros_(lin.bias)
            self.layers.append(lin)
        self.last = nn.Linear(WIDTH, 1)
        nn.init.normal_(self.last.weight, math.sqrt(math.pi / WIDTH), 1e-4)
        nn.init.constant_(self.last.bias, -0.6)
        self.act = nn.Softplus(beta=100)

    def forward(self, x):
        h = x
        for i, lin in enumerate(self.layers):
            if i == SKIP:
                h = torch.cat([h, x], -1) / math.sqrt(2)
            h = self.act(lin(h))
        return self.last(h)


def surface(n):
    """A torus, with its normals."""
    u, v = 2 * math.pi * torch.rand(2, n, device=dev)
    ring = torch.stack([u.cos(), u.sin(), torch.zeros_like(u)], -1)
    up = torch.tensor([0.0, 0.0, 1.0], device=dev)
    normal = v.cos()[:, None] * ring + v.sin()[:, None] * up
    return 0.6 * ring + 0.25 * normal, normal


def igr_loss(net, pts, normals, space):
    x = torch.cat([pts, space]).requires_grad_(True)
    d = net(x)
    (grad,) = torch.autograd.grad(d, x, torch.ones_like(d), create_graph=True)
    n = len(pts)
    on_surface = d[:n].abs().mean()
    direction = (grad[:n] - normals).norm(dim=-1).mean()
    eikonal = (grad[n:].norm(dim=-1) - 1).square().mean()
    return on_surface + direction + 0.1 * eikonal


def sample():
    pts, normals = surface(N_SURFACE)
    space = torch.rand(N_SPACE, 3, device=dev) * 2 - 1
    return pts, normals, space


net = SDF().to(dev)
adam = torch.optim.Adam(net.parameters(), lr=1e-3)
for i in range(ADAM_STEPS):
    loss = igr_loss(net, *sample())
    adam.zero_grad()
    loss.backward()
    adam.step()
    print(f"adam {i} loss {loss.item():.6f}", flush=True)

lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.2, max_iter=4, history_size=8)
fixed = sample()


def closure():
    lbfgs.zero_grad()
    value = igr_loss(net, *fixed)
    value.backward()
    return value


for i in range(LBFGS_STEPS):
    loss = lbfgs.step(closure)
    print(f"lbfgs {i} loss {loss.item():.6f}", flush=True)

with torch.no_grad():
    pts, _ = surface(1000)
    print(f"mean distance on fresh surface points {net(pts).abs().mean().item():.5f}")
