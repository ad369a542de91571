# Multi-task dense prediction (seg / depth / normals) balanced with GradNorm.
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TASKS = ("seg", "depth", "normal")


def cbr(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU())


class SharedNet(nn.Module):
    def __init__(self, w, n_seg):
        super().__init__()
        self.e1 = nn.Sequential(cbr(3, w), cbr(w, w))
        self.e2 = nn.Sequential(cbr(w, 2 * w), cbr(2 * w, 2 * w))
        self.e3 = nn.Sequential(cbr(2 * w, 4 * w), cbr(4 * w, 4 * w))
        self.d2 = nn.Sequential(cbr(6 * w, 2 * w), cbr(2 * w, 2 * w))
        self.d1 = nn.Sequential(cbr(3 * w, w), cbr(w, w))
        self.shared_last = nn.Conv2d(w, w, 3, padding=1)
        self.heads = nn.ModuleDict(
            {
                "seg": nn.Sequential(cbr(w, w), nn.Conv2d(w, n_seg, 1)),
                "depth": nn.Sequential(cbr(w, w), nn.Conv2d(w, 1, 1)),
                "normal": nn.Sequential(cbr(w, w), nn.Conv2d(w, 3, 1)),
            }
        )

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(F.max_pool2d(a, 2))
        c = self.e3(F.max_pool2d(b, 2))
        u = self.d2(torch.cat([F.interpolate(c, scale_factor=2, mode="nearest"), b], 1))
        u = self.d1(torch.cat([F.interpolate(u, scale_factor=2, mode="nearest"), a], 1))
        u = torch.relu(self.shared_last(u))
        out = {t: h(u) for t, h in self.heads.items()}
        out["normal"] = F.normalize(out["normal"], dim=1)
        return out


def task_losses(pred, target):
    seg = F.cross_entropy(pred["seg"].permute(0, 2, 3, 1).flatten(0, 2), target["seg"].flatten())
    valid = (target["depth"] > 0).float()
    depth = ((pred["depth"] - target["depth"]).abs() * valid).sum() / valid.sum()
    normal = 1 - (pred["normal"] * target["normal"]).sum(1).mean()
    return torch.stack([seg, depth, normal])


def scene(bs, h, w, n_seg, gen):
    plane = torch.rand(bs, 3, 1, 1, generator=gen) * 2 - 1
    yy = torch.linspace(-1, 1, h)[None, None, :, None]
    xx = torch.linspace(-1, 1, w)[None, None, None, :]
    depth = 2 + plane[:, :1] * xx + plane[:, 1:2] * yy + 0.2 * plane[:, 2:] * xx * yy
    depth = depth * (torch.rand(bs, 1, h, w, generator=gen) > 0.1)
    n = torch.cat([-plane[:, :1], -plane[:, 1:2], torch.ones(bs, 1, 1, 1)], 1)
    normal = F.normalize(n, dim=1).expand(-1, -1, h, w)
    seg = (
        ((xx + 1 + (yy + 1) * 2) * n_seg / 6.01)
        .long()
        .clamp(0, n_seg - 1)
        .expand(bs, 1, h, w)[:, 0]
    )
    rgb = torch.cat([depth * 0.3, seg[:, None] / n_seg, xx.expand(bs, 1, h, w)], 1)
    rgb = rgb + 0.1 * torch.randn(rgb.shape, generator=gen)
    return rgb, {"seg": seg, "depth": depth, "normal": normal}


def main(opt):
    torch.manual_seed(opt.seed)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gen = torch.Generator().manual_seed(opt.seed)
    net = SharedNet(opt.width, opt.n_seg).to(device)
    weights = nn.Parameter(torch.ones(len(TASKS), device=device))
    opt_net = torch.optim.Adam(net.parameters(), lr=1e-4)
    opt_w = torch.optim.Adam([weights], lr=0.025)
    initial = None

    for step in range(opt.steps):
        x, tgt = scene(opt.batch, opt.height, opt.width_px, opt.n_seg, gen)
        x, tgt = x.to(device), {k: v.to(device) for k, v in tgt.items()}
        losses = task_losses(net(x), tgt)
        if initial is None:
            initial = losses.detach()
        weighted = weights * losses
        total = weighted.sum()

        opt_net.zero_grad()
        total.backward(retain_graph=True)

        # GradNorm: norms of each weighted task gradient at the last shared layer
        W = net.shared_last.weight
        norms = torch.stack(
            [
                torch.autograd.grad(weighted[i], W, retain_graph=True, create_graph=True)[0].norm()
                for i in range(len(TASKS))
            ]
        )
        ratio = losses.detach() / initial
        inverse_rate = ratio / ratio.mean()
        target_norm = (norms.mean() * inverse_rate**opt.alpha).detach()
        gradnorm_loss = (norms - target_norm).abs().sum()
        weights.grad = torch.autograd.grad(gradnorm_loss, weights)[0]

        opt_net.step()
        opt_w.step()
        with torch.no_grad():
            weights.mul_(len(TASKS) / weights.sum())
        per_task = " ".join(f"{t} {l:.5f}" for t, l in zip(TASKS, losses.tolist()))  # noqa: E741
        print(
            f"step {step} loss {total.item():.6f} {per_task} w {[round(v, 4) for v in weights.tolist()]}"  # noqa: E501
        )


if __name__ == "__main__":
    s = os.environ.get("SMALL") == "1"
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=2 if s else 14)
    ap.add_argument("--height", type=int, default=24 if s else 192)
    ap.add_argument("--width-px", type=int, default=32 if s else 256)
    ap.add_argument("--width", type=int, default=8 if s else 64)
    ap.add_argument("--n-seg", type=int, default=5 if s else 13)
    ap.add_argument("--alpha", type=float, default=1.5)
    ap.add_argument("--steps", type=int, default=12)
    ap.add_argument("--seed", type=int, default=8)
    main(ap.parse_args())
