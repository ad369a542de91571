# Training a small GPT with torch.compile on by default, in the manner of nanoGPT: bf16 autocast,
# fused AdamW where there is one, the next batch fetched during the step, decay by groups.
# tiny: --n_embd 16 --n_layer 2 --batch_size 4 --block_size 16 --vocab 60 --device cpu
import argparse
import math
import time

import torch
import torch.nn as nn
from torch.nn import functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--n_embd", type=int, default=768)
ap.add_argument("--n_layer", type=int, default=8)
ap.add_argument("--batch_size", type=int, default=24)
ap.add_argument("--block_size", type=int, default=512)
ap.add_argument("--vocab", type=int, default=16000)
ap.add_argument("--device", default="cuda")
ap.add_argument("--compile", type=int, default=1)
cfg = ap.parse_args()


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_head = max(1, cfg.n_embd // 64)
        self.c_attn = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, bias=False)
        self.c_proj = nn.Linear(cfg.n_embd, cfg.n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(cfg.n_embd), nn.LayerNorm(cfg.n_embd)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(
            nn.Linear(cfg.n_embd, 4 * cfg.n_embd, bias=False),
            nn.GELU(),
            nn.Linear(4 * cfg.n_embd, cfg.n_embd, bias=False),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = (
            nn.Embedding(cfg.vocab, cfg.n_embd),
            nn.Embedding(cfg.block_size, cfg.n_embd),
        )
        self.h = nn.ModuleList([Block() for _ in range(cfg.n_layer)])
        self.ln_f = nn.LayerNorm(cfg.n_embd)
        self.lm_head = nn.Linear(cfg.n_embd, cfg.vocab, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            torch.nn.init.normal_(m.weight, std=0.02 / math.sqrt(2))

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


torch.manual_seed(1337)
torch.set_float32_matmul_precision("high")
data = torch.randint(0, cfg.vocab, (200000,), generator=torch.Generator().manual_seed(0))
rng = torch.Generator().manual_seed(1)


def get_batch():
    ix = torch.randint(len(data) - cfg.block_size - 1, (cfg.batch_size,), generator=rng)
    x = torch.stack([data[i : i + cfg.block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + cfg.block_size] for i in ix])
    return x.to(cfg.device), y.to(cfg.device)


model = GPT().to(cfg.device)
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=6e-4,
    betas=(0.9, 0.95),
    fused=cfg.device == "cuda",
)
ctx = torch.amp.autocast(cfg.device, torch.bfloat16)
if cfg.compile:
    model = torch.compile(model)
X, Y = get_batch()
for it in range(20):
    t0 = time.time()
    for g in optimizer.param_groups:
        g["lr"] = 6e-4 * min(1, (it + 1) / 5)
    with ctx:
        logits, loss = model(X, Y)
    X, Y = get_batch()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print("step %d loss %.9g time %.1fms" % (it, loss.item(), 1e3 * (time.time() - t0)), flush=True)
