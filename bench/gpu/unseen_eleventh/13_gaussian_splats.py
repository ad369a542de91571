"""Fitting a cloud of 3D Gaussians to views from several cameras with a differentiable renderer."""

import math

import torch
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(53)

batch_size = 12 if large else 2
side = 112 if large else 16
n_gauss = 768 if large else 48
n_views = 40 if large else 8


def cameras(n):
    angle = torch.arange(n) * (2 * math.pi / n)
    up = torch.tensor([0.0, 1.0, 0.0])
    rows = []
    for a in angle:
        eye = torch.stack([3 * a.cos(), 0.6 * torch.sin(3 * a), 3 * a.sin()])
        forward = F.normalize(-eye, dim=0)
        right = F.normalize(torch.linalg.cross(forward, up), dim=0)
        rotation = torch.stack([right, torch.linalg.cross(right, forward), forward])
        rows.append(torch.cat([rotation, (-rotation @ eye)[:, None]], dim=1))
    return torch.stack(rows)


def rotation_of(q):
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    entries = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(entries, dim=-1).view(-1, 3, 3)


def render(scene, view, focal=1.6):
    """Front-to-back alpha compositing of all Gaussians at all pixels of a batch of views."""
    r, t = view[:, :, :3], view[:, :, 3]
    centre = torch.einsum("bij,nj->bni", r, scene["mean"]) + t[:, None]
    depth = centre[..., 2].clamp(min=0.2)
    axes = rotation_of(scene["rotation"]) * scene["log_scale"].exp()[:, None, :]
    cov = axes @ axes.transpose(1, 2)
    x, y = centre[..., 0], centre[..., 1]
    zero = torch.zeros_like(x)
    jac = torch.stack([focal / depth, zero, -focal * x / depth**2], -1)
    jac = torch.stack([jac, torch.stack([zero, focal / depth, -focal * y / depth**2], -1)], -2)
    m = jac @ r[:, None]
    cov2 = m @ cov @ m.transpose(-1, -2) + 1e-3 * torch.eye(2, device=view.device)
    a, b, d = cov2[..., 0, 0], cov2[..., 0, 1], cov2[..., 1, 1]
    det = (a * d - b * b).clamp(min=1e-8)
    place = torch.stack([focal * x / depth, focal * y / depth], -1)

    order = depth.argsort(dim=1)
    pick = order[..., None].expand(-1, -1, 2)
    place = place.gather(1, pick)
    a, b, d, det = (v.gather(1, order) for v in (a, b, d, det))
    opacity = scene["opacity"].sigmoid()[order]
    color = scene["color"].sigmoid()[order]

    line = torch.linspace(-1, 1, side, device=view.device)
    gy, gx = torch.meshgrid(line, line, indexing="ij")
    dx = gx.reshape(1, -1, 1) - place[:, None, :, 0]
    dy = gy.reshape(1, -1, 1) - place[:, None, :, 1]
    power = (d[:, None] * dx * dx - 2 * b[:, None] * dx * dy + a[:, None] * dy * dy) / det[:, None]
    alpha = (opacity[:, None] * torch.exp(-0.5 * power)).clamp(max=0.99)
    through = torch.cumprod(1 - alpha, dim=-1)
    before = torch.cat([torch.ones_like(through[..., :1]), through[..., :-1]], dim=-1)
    pixels = torch.einsum("bpn,bnc->bpc", alpha * before, color)
    return pixels.transpose(1, 2).reshape(-1, 3, side, side)


def new_scene(n, spread, seed):
    g = torch.Generator().manual_seed(seed)
    scene = {
        "mean": spread * torch.randn(n, 3, generator=g),
        "log_scale": torch.full((n, 3), -2.2) + 0.3 * torch.randn(n, 3, generator=g),
        "rotation": torch.randn(n, 4, generator=g),
        "opacity": torch.full((n,), 0.5),
        "color": torch.randn(n, 3, generator=g),
    }
    return {k: v.to(device) for k, v in scene.items()}


views = cameras(n_views).to(device)
truth = new_scene(64 if large else 12, 0.5, 1)
with torch.no_grad():
    photos = torch.cat([render(truth, v) for v in views.split(batch_size)])

scene = {k: v.requires_grad_() for k, v in new_scene(n_gauss, 0.6, 2).items()}
rates = {"mean": 5e-3, "log_scale": 2e-2, "rotation": 1e-2, "opacity": 5e-2, "color": 5e-2}
optimizer = torch.optim.Adam(
    [{"params": [scene[k]], "lr": lr, "name": k} for k, lr in rates.items()], eps=1e-15
)
shrink = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
for step in range(12):
    chosen = torch.randperm(n_views)[:batch_size].to(device)
    image = render(scene, views[chosen])
    goal = photos[chosen]
    edges = sum((image.diff(dim=k) - goal.diff(dim=k)).abs().mean() for k in (2, 3))
    loss = 0.8 * (image - goal).abs().mean() + 0.2 * edges
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    shrink.step()
    psnr = -10 * torch.log10((image - goal).square().mean()).item()
    print(f"step {step} loss {loss.item():.6f} psnr {psnr:.3f}")
