"""
Minimal GPT trained from scratch, everything in one file.
usage: python 01_char_gpt.py [--lr 3e-4] [--batch-size 12]
"""

import argparse
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL", "0") == "1"

parser = argparse.ArgumentParser()
parser.add_argument("--n-layer", type=int, default=2 if SMALL else 12)
parser.add_argument("--n-head", type=int, default=2 if SMALL else 12)
parser.add_argument("--n-embd", type=int, default=64 if SMALL else 768)
parser.add_argument("--block-size", type=int, default=32 if SMALL else 512)
parser.add_argument("--batch-size", type=int, default=4 if SMALL else 12)
parser.add_argument("--vocab", type=int, default=128 if SMALL else 16384)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--max-iters", type=int, default=20)
parser.add_argument("--warmup", type=int, default=5)
parser.add_argument("--grad-clip", type=float, default=1.0)
parser.add_argument("--seed", type=int, default=1337)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"

# fake corpus: a noisy, strongly repetitive token stream
g = torch.Generator().manual_seed(args.seed)
base = torch.randint(0, args.vocab, (997,), generator=g)
corpus = base.repeat(200)
noise = torch.rand(corpus.shape, generator=g) < 0.1
corpus = torch.where(noise, torch.randint(0, args.vocab, corpus.shape, generator=g), corpus)


def get_batch():
    ix = torch.randint(0, len(corpus) - args.block_size - 1, (args.batch_size,), generator=g)
    idx = ix[:, None] + torch.arange(args.block_size)[None]
    x, y = corpus[idx], corpus[idx + 1]
    return x.to(device), y.to(device)


class CausalSelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n_head = cfg.n_head
        self.c_attn = nn.Linear(cfg.n_embd, 3 * cfg.n_embd)
        self.c_proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.attn_dropout = nn.Dropout(cfg.dropout)
        self.resid_dropout = nn.Dropout(cfg.dropout)
        mask = torch.tril(torch.ones(cfg.block_size, cfg.block_size))
        self.register_buffer("bias", mask.view(1, 1, cfg.block_size, cfg.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln_1 = nn.LayerNorm(cfg.n_embd)
        self.attn = CausalSelfAttention(cfg)
        self.ln_2 = nn.LayerNorm(cfg.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.n_embd, 4 * cfg.n_embd),
            nn.GELU(),
            nn.Linear(4 * cfg.n_embd, cfg.n_embd),
            nn.Dropout(cfg.dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.wte = nn.Embedding(cfg.vocab, cfg.n_embd)
        self.wpe = nn.Embedding(cfg.block_size, cfg.n_embd)
        self.drop = nn.Dropout(cfg.dropout)
        self.h = nn.ModuleList([Block(cfg) for _ in range(cfg.n_layer)])
        self.ln_f = nn.LayerNorm(cfg.n_embd)
        self.lm_head = nn.Linear(cfg.n_embd, cfg.vocab, bias=False)
        self.lm_head.weight = self.wte.weight  # weight tying
        self.apply(self._init)
        for n, p in self.named_parameters():
            if n.endswith("c_proj.weight"):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * cfg.n_layer))

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx, targets):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


def get_lr(it):
    if it < args.warmup:
        return args.lr * (it + 1) / args.warmup
    r = (it - args.warmup) / max(1, args.max_iters - args.warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * r)))


model = GPT(args).to(device)
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
    lr=args.lr,
    betas=(0.9, 0.95),
    fused=(device == "cuda"),
)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")

model.train()
for it in range(args.max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    X, Y = get_batch()
    logits, loss = model(X, Y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % 2 == 0 or it == args.max_iters - 1:
        print(f"step {it} loss {loss.item():.6f}")
