"""Train a masked diffusion language model: mask at a random rate, weight the loss by 1/t."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)
device = "cuda" if torch.cuda.is_available() else "cpu"

vocab, dim, depth, heads = 8192, 768, 12, 12
batch, seq_len, steps = 10, 1024, 12
if device == "cpu":
    vocab, dim, depth, heads = 256, 64, 2, 4
    batch, seq_len, steps = 4, 64, 8
MASK = vocab


def rotary_table(length, head_dim):
    freq = 1.0 / 10000 ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(length).float(), freq)
    return torch.cat([angle.cos(), angle.cos()], -1), torch.cat([angle.sin(), angle.sin()], -1)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.mlp(self.norm2(x))


class MaskedDiffusionLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab + 1, dim)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        cos, sin = rotary_table(seq_len, dim // heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def make_batch():
    # arithmetic sequences modulo the vocabulary, so that there is something to infer
    start = torch.randint(0, vocab, (batch, 1))
    stride = torch.randint(1, 8, (batch, 1))
    return ((start + stride * torch.arange(seq_len)) % vocab).to(device)


def diffusion_loss(model, ids):
    # low-discrepancy sampling of t across the batch
    u = (torch.rand(1, device=device) + torch.arange(batch, device=device) / batch) % 1.0
    t = (1e-3 + (1 - 1e-3) * u)[:, None]
    masked = torch.rand(ids.shape, device=device) < t
    logits = model(torch.where(masked, MASK, ids))
    nll = F.cross_entropy(logits.float().transpose(1, 2), ids, reduction="none")
    return (nll * masked / t).sum() / ids.numel()


def lr_at(step):
    warm = 3
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


model = MaskedDiffusionLM().to(device)
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
    lr=4e-4,
    betas=(0.9, 0.95),
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_at)

for step in range(steps):
    ids = make_batch()
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = diffusion_loss(model, ids)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
