"""Fit a neural radiance field with coarse and fine sampling to rendered coloured spheres."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

N_RAYS, N_COARSE, N_FINE, WIDTH, STEPS = 1536, 64, 128, 256, 15
if device.type == "cpu":
    N_RAYS, N_COARSE, N_FINE, WIDTH, STEPS = 64, 16, 16, 32, 10
NEAR, FAR = 2.0, 6.0

CENTERS = torch.tensor([[0.0, 0.0, 0.0], [0.8, 0.3, -0.2], [-0.6, -0.5, 0.4]], device=device)
RADII = torch.tensor([0.6, 0.35, 0.4], device=device)
COLORS = torch.tensor([[0.9, 0.2, 0.2], [0.2, 0.8, 0.3], [0.2, 0.3, 0.9]], device=device)


def encode(x, bands):
    freqs = 2.0 ** torch.arange(bands, device=x.device)
    angles = (x[..., None] * freqs).flatten(-2)
    return torch.cat([x, angles.sin(), angles.cos()], dim=-1)


class NeRF(nn.Module):
    def __init__(self, bands_xyz=10, bands_dir=4, width=WIDTH, depth=8, skip=4):
        super().__init__()
        self.bands_xyz, self.bands_dir, self.skip = bands_xyz, bands_dir, skip
        d_xyz, d_dir = 3 + 6 * bands_xyz, 3 + 6 * bands_dir
        sizes = [d_xyz] + [width] * (depth - 1)
        self.layers = nn.ModuleList(
            nn.Linear(s + (d_xyz if i == skip else 0), width) for i, s in enumerate(sizes)
        )
        self.sigma = nn.Linear(width, 1)
        self.feature = nn.Linear(width, width)
        self.color = nn.Sequential(
            nn.Linear(width + d_dir, width // 2), nn.ReLU(), nn.Linear(width // 2, 3), nn.Sigmoid()
        )

    def forward(self, points, dirs):
        x = encode(points, self.bands_xyz)
        h = x
        for i, layer in enumerate(self.layers):
            if i == self.skip:
                h = torch.cat([h, x], dim=-1)
            h = F.relu(layer(h))
        d = encode(dirs, self.bands_dir)[:, None].expand(-1, points.shape[1], -1)
        rgb = self.color(torch.cat([self.feature(h), d], dim=-1))
        return rgb, self.sigma(h).squeeze(-1)


def composite(rgb, sigma, z):
    delta = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], dim=-1)
    alpha = 1 - torch.exp(-F.softplus(sigma - 1) * delta)
    ones = torch.ones_like(alpha[:, :1])
    trans = torch.cumprod(torch.cat([ones, 1 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * trans
    color = (weights[..., None] * rgb).sum(1) + 1 - weights.sum(-1, keepdim=True)
    return color, weights


def sample_pdf(bins, weights, count):
    pdf = (weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True)
    cdf = torch.cat([torch.zeros_like(pdf[:, :1]), pdf.cumsum(-1)], -1)
    u = torch.rand(len(bins), count, device=bins.device)
    idx = torch.searchsorted(cdf.contiguous(), u, right=True)
    lo, hi = (idx - 1).clamp(min=0), idx.clamp(max=cdf.shape[-1] - 1)
    c0, c1 = cdf.gather(1, lo), cdf.gather(1, hi)
    b0, b1 = bins.gather(1, lo), bins.gather(1, hi.clamp(max=bins.shape[-1] - 1))
    frac = (u - c0) / (c1 - c0).clamp(min=1e-5)
    return b0 + frac.clamp(0, 1) * (b1 - b0)


def render(coarse, fine, origins, dirs):
    edges = torch.linspace(NEAR, FAR, N_COARSE + 1, device=device)
    z = edges[:-1] + torch.rand(len(origins), N_COARSE, device=device) * (edges[1] - edges[0])
    rgb, sigma = coarse(origins[:, None] + dirs[:, None] * z[..., None], dirs)
    color_c, weights = composite(rgb, sigma, z)
    middle = 0.5 * (z[:, 1:] + z[:, :-1])
    z_new = sample_pdf(middle, weights[:, 1:-1].detach(), N_FINE)
    z_all, _ = torch.sort(torch.cat([z, z_new], -1), -1)
    rgb, sigma = fine(origins[:, None] + dirs[:, None] * z_all[..., None], dirs)
    return color_c, composite(rgb, sigma, z_all)[0]


@torch.no_grad()
def trace(origins, dirs):
    """Ground truth: nearest sphere hit, Lambertian shading, white background."""
    oc = origins[:, None] - CENTERS
    b = (oc * dirs[:, None]).sum(-1)
    disc = b**2 - (oc**2).sum(-1) + RADII**2
    t = torch.where(disc > 0, -b - disc.clamp(min=0).sqrt(), torch.full_like(b, 1e6))
    t, which = t.min(-1)
    normal = F.normalize(origins + t[:, None] * dirs - CENTERS[which], dim=-1)
    light = F.normalize(torch.tensor([1.0, 1.0, 0.5], device=device), dim=0)
    shade = 0.3 + 0.7 * (normal @ light).clamp(min=0)
    return torch.where((t < 1e5)[:, None], COLORS[which] * shade[:, None], torch.ones(1).to(device))


def random_rays(n):
    origins = 4.0 * F.normalize(torch.randn(n, 3, device=device), dim=-1)
    targets = torch.rand(n, 3, device=device) * 2 - 1
    return origins, F.normalize(targets - origins, dim=-1)


coarse, fine = NeRF().to(device), NeRF().to(device)
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
for step in range(STEPS):
    origins, dirs = random_rays(N_RAYS)
    target = trace(origins, dirs)
    out_coarse, out_fine = render(coarse, fine, origins, dirs)
    loss = F.mse_loss(out_coarse, target) + F.mse_loss(out_fine, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
