# Rectified-flow image generator with a U-ViT (long skips), bf16, EMA by torch.optim.swa_utils.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

CUDA = torch.cuda.is_available()
dev = "cuda" if CUDA else "cpu"

img_size, patch = (64, 4) if CUDA else (16, 4)
dim, depth, heads = (512, 13, 8) if CUDA else (32, 3, 2)
n_classes = 100
bs = 64 if CUDA else 2
n_steps = 10 if CUDA else 3


class Attn(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads, skip=False):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attn(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.skip_linear = nn.Linear(2 * dim, dim) if skip else None

    def forward(self, x, skip=None):
        if self.skip_linear is not None:
            x = self.skip_linear(torch.cat([x, skip], -1))
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


def sinusoid(t, dim):
    freq = torch.exp(-torch.arange(dim // 2, device=t.device) * (9.21 / (dim // 2)))
    a = 1000 * t[:, None] * freq[None]
    return torch.cat([a.cos(), a.sin()], -1)


class UViT(nn.Module):
    def __init__(self):
        super().__init__()
        n = (img_size // patch) ** 2
        self.proj = nn.Conv2d(3, dim, patch, patch)
        self.label = nn.Embedding(n_classes + 1, dim)
        self.pos = nn.Parameter(torch.randn(1, n + 2, dim) * 0.02)
        self.down = nn.ModuleList(Block(dim, heads) for _ in range(depth // 2))
        self.mid = Block(dim, heads)
        self.up = nn.ModuleList(Block(dim, heads, skip=True) for _ in range(depth // 2))
        self.norm = nn.LayerNorm(dim)
        self.dec = nn.Linear(dim, patch * patch * 3)
        self.final = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x, t, y):
        tok = self.proj(x).flatten(2).transpose(1, 2)
        cond = torch.stack([sinusoid(t, dim), self.label(y)], 1)
        h = torch.cat([cond.to(tok.dtype), tok], 1) + self.pos
        stack = []
        for blk in self.down:
            h = blk(h)
            stack.append(h)
        h = self.mid(h)
        for blk in self.up:
            h = blk(h, stack.pop())
        h = self.dec(self.norm(h))[:, 2:].transpose(1, 2)
        g = img_size // patch
        h = F.pixel_shuffle(h.reshape(h.size(0), -1, g, g), patch)
        return self.final(h)


torch.manual_seed(31337)
model = UViT().to(dev)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.03, betas=(0.99, 0.99))
warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=4)
rng = torch.Generator().manual_seed(1)

for step in range(n_steps):
    y = torch.randint(0, n_classes, (bs,), generator=rng)
    x1 = 0.5 * torch.randn(bs, 3, img_size, img_size, generator=rng) + y.view(-1, 1, 1, 1) / 100
    x0 = torch.randn(bs, 3, img_size, img_size, generator=rng)
    t = torch.sigmoid(torch.randn(bs, generator=rng))
    drop = torch.rand(bs, generator=rng) < 0.1
    y = torch.where(drop, torch.full_like(y, n_classes), y)
    x1, x0, t, y = x1.to(dev), x0.to(dev), t.to(dev), y.to(dev)

    tt = t.view(-1, 1, 1, 1)
    xt = (1 - tt) * x0 + tt * x1
    with torch.autocast(dev, dtype=torch.bfloat16, enabled=CUDA):
        v = model(xt, t, y)
    loss = F.mse_loss(v.float(), x1 - x0)

    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    warm.step()
    ema.update_parameters(model)
    print(f"[{step:04d}] loss {loss.item():.8f} lr {warm.get_last_lr()[0]:.2e}", flush=True)

# a few Euler steps from noise with the averaged weights
with torch.no_grad():
    z = torch.randn(4, 3, img_size, img_size, generator=rng).to(dev)
    lab = torch.arange(4, device=dev)
    for i in range(4):
        z = z + 0.25 * ema(z, torch.full((4,), i / 4, device=dev), lab)
print("sample std", z.std().item())
