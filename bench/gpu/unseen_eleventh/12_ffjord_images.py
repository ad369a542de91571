"""Continuous normalizing flow on small images: RK4, Hutchinson trace, kinetic regularisation."""

import math

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
torch.manual_seed(47)

batch_size = 128 if large else 8
side = 28 if large else 8
width = 48 if large else 8
solver_steps = 8 if large else 2
dims = side * side


class ConcatConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin + 1, cout, 3, padding=1)

    def forward(self, t, x):
        return self.conv(torch.cat([x, t.expand(len(x), 1, *x.shape[2:])], dim=1))


class Velocity(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [1, width, width, width, 1]
        self.layers = nn.ModuleList(
            ConcatConv(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)
        )
        nn.init.zeros_(self.layers[-1].conv.weight)
        nn.init.zeros_(self.layers[-1].conv.bias)

    def forward(self, t, x):
        for i, layer in enumerate(self.layers):
            x = layer(t, x)
            if i < len(self.layers) - 1:
                x = nn.functional.softplus(x)
        return x


def dynamics(net, t, x, noise):
    """Velocity, minus the estimated divergence and the kinetic energy, per sample."""
    if not x.requires_grad:
        x = x.requires_grad_()
    v = net(t, x)
    (vjp,) = torch.autograd.grad(v, x, noise, create_graph=True)
    divergence = (vjp * noise).flatten(1).sum(1)
    return v, -divergence, v.square().flatten(1).mean(1)


def integrate(net, x, noise):
    h = 1.0 / solver_steps
    state = (x, x.new_zeros(len(x)), x.new_zeros(len(x)))

    def shift(s, k, c):
        return tuple(a + c * b for a, b in zip(s, k, strict=True))

    for i in range(solver_steps):
        t = x.new_tensor(i * h)
        k1 = dynamics(net, t, state[0], noise)
        k2 = dynamics(net, t + h / 2, shift(state, k1, h / 2)[0], noise)
        k3 = dynamics(net, t + h / 2, shift(state, k2, h / 2)[0], noise)
        k4 = dynamics(net, t + h, shift(state, k3, h)[0], noise)
        for k, c in ((k1, h / 6), (k2, h / 3), (k3, h / 3), (k4, h / 6)):
            state = shift(state, k, c)
    return state


def images(g):
    """Soft rings of random place and radius, dequantised."""
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
    c = torch.rand(batch_size, 3, 1, 1, generator=g)
    distance = ((xs - c[:, 0] + 0.5) ** 2 + (ys - c[:, 1] + 0.5) ** 2).sqrt()
    ring = torch.exp(-(((distance - 0.3 - 0.3 * c[:, 2]) / 0.15) ** 2))
    pixels = (ring * 255).floor() + torch.rand(ring.shape, generator=g)
    return (pixels / 256).unsqueeze(1)


net = Velocity().to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
g = torch.Generator().manual_seed(12)
for step in range(10):
    x = images(g).to(device)
    y = 0.05 + 0.9 * x
    logit = torch.log(y) - torch.log1p(-y)
    log_jacobian = (math.log(0.9) - torch.log(y) - torch.log1p(-y)).flatten(1).sum(1)
    noise = torch.randint(0, 2, x.shape, generator=g).to(device) * 2.0 - 1.0
    z, change, kinetic = integrate(net, logit, noise)
    log_pz = (-0.5 * z.square() - 0.5 * math.log(2 * math.pi)).flatten(1).sum(1)
    log_px = log_pz - change + log_jacobian
    bits = -(log_px - dims * math.log(256)) / dims / math.log(2)
    loss = bits.mean() + 0.01 * kinetic.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f} bits {bits.mean().item():.6f}")
