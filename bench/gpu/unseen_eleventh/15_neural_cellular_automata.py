"""Growing neural cellular automata with a sample pool, damage and normalised gradients."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(61)

batch_size = 32 if large else 4
side = 64 if large else 16
hidden = 128 if large else 16
low, high = (48, 64) if large else (6, 10)
channels = 16
pool_size = 128 if large else 16


def picture():
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
    r, a = (xs**2 + ys**2).sqrt(), torch.atan2(ys, xs)
    alpha = (r < 0.5 + 0.2 * torch.cos(5 * a)).float()
    rgb = torch.stack([0.5 + 0.5 * torch.sin(4 * r), 0.5 + 0.5 * torch.cos(a), 1 - r.clamp(max=1)])
    return torch.cat([rgb * alpha, alpha[None]])


class Automaton(nn.Module):
    def __init__(self):
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        identity = torch.zeros(3, 3)
        identity[1, 1] = 1
        kernels = torch.stack([identity, sobel, sobel.t()])
        self.register_buffer("kernels", kernels.repeat(channels, 1, 1)[:, None])
        self.update = nn.Sequential(
            nn.Conv2d(3 * channels, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, channels, 1, bias=False),
        )
        nn.init.zeros_(self.update[2].weight)

    @staticmethod
    def alive(x):
        return F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1

    def forward(self, x):
        before = self.alive(x)
        change = self.update(F.conv2d(x, self.kernels, padding=1, groups=channels))
        fire = (torch.rand(x[:, :1].shape, device=x.device) < 0.5).float()
        x = x + change * fire
        return x * (before & self.alive(x)).float()


def damage(x):
    g = torch.rand(len(x), 3, 1, 1, device=x.device)
    grid = torch.arange(side, device=x.device) / side
    far = (grid[None, :, None] - g[:, 0]) ** 2 + (grid[None, None, :] - g[:, 1]) ** 2
    return x * (far > (0.1 + 0.2 * g[:, 2]) ** 2).float()[:, None]


target = picture().to(device)
seed = torch.zeros(channels, side, side, device=device)
seed[3:, side // 2, side // 2] = 1.0
pool = seed.repeat(pool_size, 1, 1, 1)
model = Automaton().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [8], 0.3)

for step in range(12):
    rows = torch.randperm(pool_size, device="cpu")[:batch_size].to(device)
    x = pool[rows]
    with torch.no_grad():
        worst = (x[:, :4] - target).square().mean((1, 2, 3)).argsort(descending=True)
        rows, x = rows[worst], x[worst]
        x[0] = seed
        x[-2:] = damage(x[-2:])
    for _ in range(int(torch.randint(low, high + 1, (1,)))):
        x = model(x)
    loss = (x[:, :4] - target).square().mean()
    overflow = (x - x.clamp(-2.0, 2.0)).abs().mean()
    optimizer.zero_grad()
    (loss + overflow).backward()
    with torch.no_grad():
        for p in model.parameters():
            p.grad /= p.grad.norm() + 1e-8
    optimizer.step()
    schedule.step()
    pool[rows] = x.detach()
    print(f"step {step} loss {loss.item():.6f} overflow {overflow.item():.6f}")
