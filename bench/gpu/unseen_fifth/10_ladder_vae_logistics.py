"""Hierarchical VAE with a top-down ladder; mixture of discretised logistics, free bits, Adamax."""

import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()


class H:
    size = 16 if SMALL else 64
    batch = 2 if SMALL else 40
    width = 16 if SMALL else 128
    scales = 2 if SMALL else 4
    per_scale = 1 if SMALL else 2
    zdim = 4 if SMALL else 16
    mixtures = 3 if SMALL else 10
    steps = 10
    lr = 6e-4
    free_bits = 0.02
    skip_above = 2000.0


class Block(nn.Module):
    def __init__(self, i, mid, o, residual=False):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(i, mid, 1), nn.Conv2d(mid, mid, 3, padding=1)
        self.c3, self.c4 = nn.Conv2d(mid, mid, 3, padding=1), nn.Conv2d(mid, o, 1)
        self.residual = residual

    def forward(self, x):
        y = self.c1(F.gelu(x))
        y = self.c2(F.gelu(y))
        y = self.c3(F.gelu(y))
        y = self.c4(F.gelu(y))
        return x + y if self.residual else y


class TopDown(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.post = Block(2 * w, w // 2, 2 * H.zdim)
        self.prior = Block(w, w // 2, 2 * H.zdim + w)
        self.z = nn.Conv2d(H.zdim, w, 1)
        self.res = Block(w, w // 2, w, residual=True)

    def forward(self, x, bottom_up):
        qm, qv = self.post(torch.cat([x, bottom_up], 1)).chunk(2, 1)
        pm, pv, extra = self.prior(x).split([H.zdim, H.zdim, x.size(1)], 1)
        qv, pv = qv.clamp(-8, 4), pv.clamp(-8, 4)
        z = qm + torch.exp(qv) * torch.randn_like(qm)
        kl = pv - qv - 0.5 + 0.5 * (torch.exp(2 * qv) + (qm - pm) ** 2) * torch.exp(-2 * pv)
        return self.res(x + extra + self.z(z)), kl


class LadderVAE(nn.Module):
    def __init__(self):
        super().__init__()
        w = H.width
        self.inp = nn.Conv2d(3, w, 3, padding=1)
        self.enc = nn.ModuleList(
            nn.Sequential(*(Block(w, w // 2, w, True) for _ in range(H.per_scale)))
            for _ in range(H.scales)
        )
        top = H.size // 2 ** (H.scales - 1)
        self.top = nn.Parameter(torch.zeros(1, w, top, top))
        self.bias = nn.ParameterList(
            nn.Parameter(torch.zeros(1, w, H.size // 2**s, H.size // 2**s)) for s in range(H.scales)
        )
        self.dec = nn.ModuleList(
            nn.ModuleList(TopDown(w) for _ in range(H.per_scale)) for _ in range(H.scales)
        )
        self.out = nn.Conv2d(w, H.mixtures * 10, 1)
        for m in self.modules():
            if isinstance(m, Block) and m.residual:
                m.c4.weight.data *= math.sqrt(1 / (H.scales * H.per_scale))

    def forward(self, x):
        h, acts = self.inp(x), []
        for s, blocks in enumerate(self.enc):
            h = blocks(F.avg_pool2d(h, 2) if s else h)
            acts.append(h)
        y, kls = self.top.expand(len(x), -1, -1, -1), []
        for s in reversed(range(H.scales)):
            if s < H.scales - 1:
                y = F.interpolate(y, scale_factor=2, mode="nearest")
            y = y + self.bias[s]
            for block in self.dec[s]:
                y, kl = block(y, acts[s])
                kls.append(kl)
        return self.out(y), kls


def dmol_nll(x, params):
    """x in [-1, 1], (b, 3, h, w); after PixelCNN++."""
    b, _, h, w = x.shape
    k = H.mixtures
    params = params.permute(0, 2, 3, 1)
    logit, rest = params[..., :k], params[..., k:].reshape(b, h, w, 3, 3 * k)
    mean, log_scale, coef = rest.split(k, -1)
    log_scale, coef = log_scale.clamp(min=-7), coef.tanh()
    x = x.permute(0, 2, 3, 1).unsqueeze(-1).expand(-1, -1, -1, -1, k)
    m1 = mean[..., 0, :]
    m2 = mean[..., 1, :] + coef[..., 0, :] * x[..., 0, :]
    m3 = mean[..., 2, :] + coef[..., 1, :] * x[..., 0, :] + coef[..., 2, :] * x[..., 1, :]
    centred = x - torch.stack([m1, m2, m3], 3)
    inv = torch.exp(-log_scale)
    plus, minus = inv * (centred + 1 / 255), inv * (centred - 1 / 255)
    delta = plus.sigmoid() - minus.sigmoid()
    mid = inv * centred
    log_pdf_mid = mid - log_scale - 2 * F.softplus(mid)
    log_p = torch.where(
        x < -0.999,
        plus - F.softplus(plus),
        torch.where(
            x > 0.999,
            -F.softplus(minus),
            torch.where(delta > 1e-5, delta.clamp(min=1e-12).log(), log_pdf_mid - math.log(127.5)),
        ),
    )
    log_p = log_p.sum(3) + logit.log_softmax(-1)
    return -log_p.logsumexp(-1).sum((1, 2)) / (3 * h * w)


def images(g):
    c = torch.randint(0, 256, (H.batch, 3, H.size // 8, H.size // 8), generator=g)
    c = c.repeat_interleave(8, 2).repeat_interleave(8, 3)
    c = (c + torch.randint(-9, 10, c.shape, generator=g)).clamp(0, 255)
    return c.float() / 127.5 - 1


def main():
    torch.manual_seed(1010)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LadderVAE().to(device)
    opt = torch.optim.Adamax(model.parameters(), lr=H.lr)
    g = torch.Generator().manual_seed(10)
    for step in range(H.steps):
        x = images(g).to(device)
        params, kls = model(x)
        nll = dmol_nll(x, params).mean()
        # free bits per channel of each latent, averaged over the batch
        kl = sum(k.sum((2, 3)).mean(0).clamp(min=H.free_bits).sum() for k in kls)
        kl = kl / (3 * H.size * H.size)
        beta = min(1.0, (step + 1) / 6)
        loss = nll + beta * kl
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 200.0)
        if norm < H.skip_above:
            opt.step()
        print(f"step {step} loss {loss.item():.8f} kl {kl.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
