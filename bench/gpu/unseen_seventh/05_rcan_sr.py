"""RCAN (residual channel attention) x4 super-resolution, saves and resumes a checkpoint."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
device = torch.device("cuda:0" if CUDA else "cpu")

opt = {
    "scale": 4,
    "lr_patch": 64 if CUDA else 12,
    "batch": 16 if CUDA else 2,
    "n_groups": 5 if CUDA else 2,
    "n_blocks": 10 if CUDA else 2,
    "n_feats": 64 if CUDA else 8,
    "reduction": 16 if CUDA else 4,
    "total_iter": 10 if CUDA else 4,
    "save_at": 5 if CUDA else 2,
    "lr": 1e-4,
}


class CALayer(nn.Module):
    def __init__(self, c, r):
        super().__init__()
        self.fc = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(c, c // r, 1),
            nn.ReLU(True),
            nn.Conv2d(c // r, c, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return x * self.fc(x)


class RCAB(nn.Module):
    def __init__(self, c, r):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, c, 3, 1, 1), nn.ReLU(True), nn.Conv2d(c, c, 3, 1, 1), CALayer(c, r)
        )

    def forward(self, x):
        return x + self.body(x)


class ResidualGroup(nn.Module):
    def __init__(self, c, r, n):
        super().__init__()
        self.body = nn.Sequential(*[RCAB(c, r) for _ in range(n)], nn.Conv2d(c, c, 3, 1, 1))

    def forward(self, x):
        return x + self.body(x)


class RCAN(nn.Module):
    def __init__(self, o):
        super().__init__()
        c = o["n_feats"]
        self.head = nn.Conv2d(3, c, 3, 1, 1)
        self.body = nn.Sequential(
            *[ResidualGroup(c, o["reduction"], o["n_blocks"]) for _ in range(o["n_groups"])],
            nn.Conv2d(c, c, 3, 1, 1),
        )
        ups = []
        for _ in range(o["scale"] // 2):
            ups += [nn.Conv2d(c, 4 * c, 3, 1, 1), nn.PixelShuffle(2)]
        self.tail = nn.Sequential(*ups, nn.Conv2d(c, 3, 3, 1, 1))

    def forward(self, x):
        x = self.head(x)
        return self.tail(x + self.body(x))


def sample(it):
    """Textured high-res patches and their bicubic reductions, addressed by iteration."""
    g = torch.Generator().manual_seed(3000 + it)
    hr = opt["lr_patch"] * opt["scale"]
    img = torch.rand(opt["batch"], 3, hr // 2, hr // 2, generator=g)
    img = F.interpolate(img, scale_factor=2, mode="bicubic", align_corners=False)
    low = F.interpolate(img, scale_factor=1 / opt["scale"], mode="bicubic", antialias=True)
    return low, img


def psnr(a, b):
    return (-10 * torch.log10(F.mse_loss(a.clamp(0, 1), b.clamp(0, 1)))).item()


def build():
    torch.manual_seed(0)
    net = RCAN(opt).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=opt["lr"], betas=(0.9, 0.99))
    sched = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 8], gamma=0.5)
    return net, optimizer, sched


def run(first, last, state):
    net, optimizer, sched = state
    net.train()
    for it in range(first, last):
        lq, gt = (t.to(device) for t in sample(it))
        optimizer.zero_grad()
        loss = F.l1_loss(net(lq), gt)
        loss.backward()
        optimizer.step()
        sched.step()
        print(f"iter {it:3d} loss {loss.item():.8f}", flush=True)


def validate(net):
    net.eval()
    with torch.no_grad():
        lq, gt = (t[:4].to(device) for t in sample(-1))
        print(f"val psnr {psnr(net(lq), gt):.3f} dB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "latest.pth")
        net, optimizer, sched = state = build()
        run(0, opt["save_at"], state)
        validate(net)
        torch.save(
            {
                "net": net.state_dict(),
                "optim": optimizer.state_dict(),
                "sched": sched.state_dict(),
                "iter": opt["save_at"],
            },
            path,
        )
        del net, optimizer, sched, state

        net, optimizer, sched = state = build()
        ckpt = torch.load(path, map_location="cpu")
        net.load_state_dict(ckpt["net"])
        optimizer.load_state_dict(ckpt["optim"])
        sched.load_state_dict(ckpt["sched"])
        run(ckpt["iter"], opt["total_iter"], state)
        validate(net)
