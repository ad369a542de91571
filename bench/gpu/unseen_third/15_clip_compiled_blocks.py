"""CLIP pretraining, two small towers, one big logits matrix; blocks compiled one by one."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True, warn_only=True)
torch.manual_seed(0)
BATCH = 8 if SMALL else 768
IMAGE, PATCH = (16, 8) if SMALL else (112, 16)
WORDS, VOCAB = (6, 50) if SMALL else (32, 8000)
WIDTH, HEADS, DEPTH = (32, 2, 2) if SMALL else (384, 6, 6)


class Block(nn.Module):
    def __init__(self, d, heads, causal):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.heads, self.causal = heads, causal

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class Tower(nn.Module):
    def __init__(self, causal, length):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(length, WIDTH) * 0.01)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS, causal) for _ in range(DEPTH))
        self.ln, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def run(self, x):
        x = x + self.pos
        for b in self.blocks:
            x = b(x)
        return self.ln(x)


class Vision(Tower):
    def __init__(self):
        super().__init__(False, (IMAGE // PATCH) ** 2)
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)

    def forward(self, x):
        return F.normalize(
            self.proj(self.run(self.patch(x).flatten(2).transpose(1, 2)).mean(1)), dim=-1
        )


class Text(Tower):
    def __init__(self):
        super().__init__(True, WORDS)
        self.emb = nn.Embedding(VOCAB, WIDTH)

    def forward(self, ids):
        return F.normalize(self.proj(self.run(self.emb(ids))[:, -1]), dim=-1)


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision, self.text = Vision(), Text()
        self.scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, images, ids):
        return self.vision(images), self.text(ids), self.scale.exp().clamp(max=100)


def clip_loss(i, t, scale):
    logits = scale * i.float() @ t.float().t()
    labels = torch.arange(len(i), device=i.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


model = CLIP().to(device)
for block in [*model.vision.blocks, *model.text.blocks]:
    block.compile()
opt = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
for step in range(15):
    images = torch.randint(0, 256, (BATCH, 3, IMAGE, IMAGE), dtype=torch.uint8)
    images = images.to(device).float().div_(128).sub_(1)
    ids = torch.randint(0, VOCAB, (BATCH, WORDS)).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        i, t, scale = model(images, ids)
    loss = clip_loss(i, t, scale)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.9f} scale {scale.item():.5f}", flush=True)
