"""NeRF: coarse and fine networks, rays in chunks, importance sampling with noise, volume rendering
outside of the modules, exponential decay of the rate by hand.
"""

# tiny: --n_rand 64 --n_samples 8 --n_importance 8 --width 32 --chunk 256
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Embedder:
    def __init__(self, freqs):
        self.bands = 2.0 ** torch.arange(freqs)

    def __call__(self, x):
        xb = x[..., None, :] * self.bands.to(x.device)[:, None]
        return torch.cat([x, xb.sin().flatten(-2), xb.cos().flatten(-2)], -1)


class NeRF(nn.Module):
    def __init__(self, d_in, d_views, width, depth=8, skips=(4,)):
        super().__init__()
        self.skips = skips
        self.pts = nn.ModuleList(
            [nn.Linear(d_in, width)]
            + [nn.Linear(width + (d_in if i in skips else 0), width) for i in range(1, depth)]
        )
        self.alpha, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.views, self.rgb = nn.Linear(width + d_views, width // 2), nn.Linear(width // 2, 3)

    def forward(self, x, views):
        h = x
        for i, layer in enumerate(self.pts):
            if i in self.skips:
                h = torch.cat([x, h], -1)
            h = F.relu(layer(h))
        rgb = self.rgb(F.relu(self.views(torch.cat([self.feature(h), views], -1))))
        return torch.cat([rgb, self.alpha(h)], -1)


def run_network(pts, viewdirs, fn, embed, embed_dirs, chunk):
    flat = pts.reshape(-1, 3)
    dirs = viewdirs[:, None].expand(pts.shape).reshape(-1, 3)
    x, d = embed(flat), embed_dirs(dirs)
    out = torch.cat([fn(x[i : i + chunk], d[i : i + chunk]) for i in range(0, len(x), chunk)], 0)
    return out.view(*pts.shape[:-1], 4)


def raw2outputs(raw, z_vals, rays_d):
    dists = torch.cat(
        [z_vals[..., 1:] - z_vals[..., :-1], torch.full_like(z_vals[..., :1], 1e10)], -1
    ) * rays_d.norm(dim=-1, keepdim=True)
    alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * dists)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], -1), -1)[
        :, :-1
    ]
    weights = alpha * trans
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(-2), weights


def sample_pdf(bins, weights, n):
    cdf = torch.cumsum((weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True), -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
    u = torch.rand(*cdf.shape[:-1], n, device=bins.device)
    inds = torch.searchsorted(cdf.contiguous(), u.contiguous(), right=True).clamp(
        1, cdf.shape[-1] - 1
    )
    lo, hi = cdf.gather(1, inds - 1), cdf.gather(1, inds)
    t = (u - lo) / torch.where(hi - lo < 1e-5, torch.ones_like(hi), hi - lo)
    b0, b1 = (
        bins.gather(1, (inds - 1).clamp(max=bins.shape[-1] - 1)),
        bins.gather(1, inds.clamp(max=bins.shape[-1] - 1)),
    )
    return b0 + t * (b1 - b0)


def render_rays(rays_o, rays_d, nets, args, embed, embed_dirs):
    near, far = 2.0, 6.0
    t = torch.linspace(0, 1, args.n_samples, device=rays_o.device)
    z = (near * (1 - t) + far * t).expand(len(rays_o), -1)
    z = z + torch.rand_like(z) * (far - near) / args.n_samples
    dirs = F.normalize(rays_d, dim=-1)
    raw = run_network(
        rays_o[:, None] + rays_d[:, None] * z[..., None],
        dirs,
        nets["coarse"],
        embed,
        embed_dirs,
        args.chunk,
    )
    rgb0, weights = raw2outputs(raw, z, rays_d)
    mid = 0.5 * (z[..., 1:] + z[..., :-1])
    z2 = sample_pdf(mid, weights[..., 1:-1], args.n_importance).detach()
    z = torch.sort(torch.cat([z, z2], -1), -1)[0]
    raw = run_network(
        rays_o[:, None] + rays_d[:, None] * z[..., None],
        dirs,
        nets["fine"],
        embed,
        embed_dirs,
        args.chunk,
    )
    return raw2outputs(raw, z, rays_d)[0], rgb0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--n_rand", type=int, default=2048)
    p.add_argument("--n_samples", type=int, default=64)
    p.add_argument("--n_importance", type=int, default=64)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--chunk", type=int, default=1024 * 64)
    p.add_argument("--lrate", type=float, default=5e-4)
    args = p.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    embed, embed_dirs = Embedder(10), Embedder(4)
    nets = {k: NeRF(63, 27, args.width).to(device) for k in ("coarse", "fine")}
    grad_vars = [v for n in nets.values() for v in n.parameters()]
    optimizer = torch.optim.Adam(grad_vars, lr=args.lrate, betas=(0.9, 0.999))
    g = torch.Generator().manual_seed(1)
    for i in range(20):
        rays_o = (torch.randn(args.n_rand, 3, generator=g) * 0.1).to(device)
        rays_d = F.normalize(torch.randn(args.n_rand, 3, generator=g), dim=-1).to(device)
        target = torch.rand(args.n_rand, 3, generator=g).to(device)
        rgb, rgb0 = render_rays(rays_o, rays_d, nets, args, embed, embed_dirs)
        optimizer.zero_grad()
        img_loss = torch.mean((rgb - target) ** 2)
        loss = img_loss + torch.mean((rgb0 - target) ** 2)
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = args.lrate * 0.1 ** (i / 250)
        print(
            f"step {i} loss {loss.item():.7f} psnr {-10 * torch.log10(img_loss).item():.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
