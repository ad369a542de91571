import copy
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
torch.backends.cudnn.deterministic = True


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    a = t[:, None].float() * freqs[None]
    return torch.cat([a.cos(), a.sin()], dim=-1)


def norm(c):
    return nn.GroupNorm(min(32, c // 4), c)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb, dropout=0.1):
        super().__init__()
        self.block1 = nn.Sequential(norm(cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1))
        self.temb_proj = nn.Sequential(nn.SiLU(), nn.Linear(temb, cout))
        self.block2 = nn.Sequential(
            norm(cout), nn.SiLU(), nn.Dropout(dropout), nn.Conv2d(cout, cout, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, temb):
        h = self.block1(x)
        h = h + self.temb_proj(temb)[:, :, None, None]
        h = self.block2(h)
        return h + self.shortcut(x)


class AttnBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = norm(c)
        self.qkv = nn.Conv2d(c, 3 * c, 1)
        self.out = nn.Conv2d(c, c, 1)

    def forward(self, x):
        B, C, H, W = x.shape
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, dim=1)
        w = torch.softmax(torch.bmm(q.transpose(1, 2), k) * C**-0.5, dim=-1)
        h = torch.bmm(v, w.transpose(1, 2)).view(B, C, H, W)
        return x + self.out(h)


class UNet(nn.Module):
    def __init__(self, ch, mult, num_res=2):
        super().__init__()
        self.ch = ch
        temb = ch * 4
        self.time = nn.Sequential(nn.Linear(ch, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.head = nn.Conv2d(3, ch, 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        chs, cur = [ch], ch
        for i, m in enumerate(mult):
            for _ in range(num_res):
                self.downs.append(ResBlock(cur, ch * m, temb))
                cur = ch * m
                chs.append(cur)
            if i != len(mult) - 1:
                self.downs.append(nn.Conv2d(cur, cur, 3, stride=2, padding=1))
                chs.append(cur)
        self.mid1, self.mid_attn, self.mid2 = (
            ResBlock(cur, cur, temb),
            AttnBlock(cur),
            ResBlock(cur, cur, temb),
        )
        for i, m in reversed(list(enumerate(mult))):
            for _ in range(num_res + 1):
                self.ups.append(ResBlock(chs.pop() + cur, ch * m, temb))
                cur = ch * m
            if i != 0:
                self.ups.append(
                    nn.Sequential(
                        nn.Upsample(scale_factor=2, mode="nearest"),
                        nn.Conv2d(cur, cur, 3, padding=1),
                    )
                )
        self.tail = nn.Sequential(norm(cur), nn.SiLU(), nn.Conv2d(cur, 3, 3, padding=1))

    def forward(self, x, t):
        temb = self.time(timestep_embedding(t, self.ch))
        h = self.head(x)
        hs = [h]
        for layer in self.downs:
            h = layer(h, temb) if isinstance(layer, ResBlock) else layer(h)
            hs.append(h)
        h = self.mid2(self.mid_attn(self.mid1(h, temb)), temb)
        for layer in self.ups:
            if isinstance(layer, ResBlock):
                h = layer(torch.cat([h, hs.pop()], dim=1), temb)
            else:
                h = layer(h)
        return self.tail(h)


class GaussianDiffusion:
    def __init__(self, T=1000, device="cpu"):
        self.T = T
        betas = torch.linspace(1e-4, 0.02, T, dtype=torch.float64)
        acp = torch.cumprod(1 - betas, dim=0)
        self.sqrt_acp = acp.sqrt().float().to(device)
        self.sqrt_om = (1 - acp).sqrt().float().to(device)

    def loss(self, model, x0):
        t = torch.randint(0, self.T, (x0.shape[0],), device=x0.device)
        noise = torch.randn_like(x0)
        xt = (
            self.sqrt_acp[t][:, None, None, None] * x0
            + self.sqrt_om[t][:, None, None, None] * noise
        )
        return F.mse_loss(model(xt, t), noise)


class EMA:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(self.decay).add_(p, alpha=1 - self.decay)


class Trainer:
    def __init__(self):
        torch.manual_seed(3407)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.size, self.bs, ch = (8, 4, 16) if SMALL else (64, 64, 128)
        self.steps = 15
        self.model = UNet(ch, (1, 2, 2)).to(self.device)
        self.ema = EMA(self.model)
        self.diffusion = GaussianDiffusion(device=self.device)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=2e-4)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: min(s + 1, 5) / 5)
        self.gen = torch.Generator().manual_seed(5)

    def sample_batch(self):
        low = torch.rand(self.bs, 3, 4, 4, generator=self.gen)
        img = F.interpolate(low, size=(self.size, self.size), mode="bilinear", align_corners=False)
        return (img * 2 - 1).to(self.device)

    def fit(self):
        self.model.train()
        for step in range(self.steps):
            x0 = self.sample_batch()
            self.opt.zero_grad()
            loss = self.diffusion.loss(self.model, x0)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.ema.update(self.model)
            print(f"step {step} loss {loss.item():.6f}")


Trainer().fit()
