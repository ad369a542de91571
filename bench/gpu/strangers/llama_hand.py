"""A LLaMA-like model by hand, as in small pretraining repositories: config dataclass, RoPE buffers,
tied weights, documents packed with a block mask, z-loss, GradScaler, schedule function,
accumulation.
"""

# tiny: --dim 32 --n_layers 2 --vocab 256 --seq 32 --micro 2
import argparse
import math
import time
from dataclasses import dataclass, fields

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 768
    n_layers: int = 8
    n_heads: int = 12
    n_kv_heads: int = 4
    vocab: int = 32768
    seq: int = 768
    norm_eps: float = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    return torch.polar(torch.ones(end, dim // 2), torch.outer(torch.arange(end).float(), freqs))


def apply_rotary(x, freqs):
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(xc * freqs[None, :, None]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.h, self.kv, self.hd = a.n_heads, a.n_kv_heads, a.dim // a.n_heads
        self.wq, self.wk = (
            nn.Linear(a.dim, a.dim, bias=False),
            nn.Linear(a.dim, self.kv * self.hd, bias=False),
        )
        self.wv, self.wo = (
            nn.Linear(a.dim, self.kv * self.hd, bias=False),
            nn.Linear(a.dim, a.dim, bias=False),
        )

    def forward(self, x, freqs, mask):
        b, s, _ = x.shape
        q, k, v = (
            self.wq(x).view(b, s, self.h, self.hd),
            self.wk(x).view(b, s, self.kv, self.hd),
            self.wv(x).view(b, s, self.kv, self.hd),
        )
        q, k = apply_rotary(q, freqs), apply_rotary(k, freqs)
        k, v = (t.repeat_interleave(self.h // self.kv, 2) for t in (k, v))
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
        )
        return self.wo(out.transpose(1, 2).reshape(b, s, -1))


class TransformerBlock(nn.Module):
    def __init__(self, layer_id, a):
        super().__init__()
        self.attention, self.layer_id = Attention(a), layer_id
        hidden = int(8 * a.dim / 3)
        self.w1, self.w2, self.w3 = (
            nn.Linear(a.dim, hidden, bias=False),
            nn.Linear(hidden, a.dim, bias=False),
            nn.Linear(a.dim, hidden, bias=False),
        )
        self.n1, self.n2 = RMSNorm(a.dim, a.norm_eps), RMSNorm(a.dim, a.norm_eps)

    def forward(self, x, freqs, mask):
        h = x + self.attention(self.n1(x), freqs, mask)
        y = self.n2(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Transformer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok_embeddings = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList([TransformerBlock(i, a) for i in range(a.n_layers)])
        self.norm, self.output = RMSNorm(a.dim, a.norm_eps), nn.Linear(a.dim, a.vocab, bias=False)
        self.output.weight = self.tok_embeddings.weight
        self.register_buffer(
            "freqs_cis", precompute_freqs_cis(a.dim // a.n_heads, a.seq), persistent=False
        )
        self.apply(
            lambda m: (
                nn.init.normal_(m.weight, std=0.02)
                if isinstance(m, (nn.Linear, nn.Embedding))
                else None
            )
        )
        self.last_loss = None

    def forward(self, tokens, targets=None, doc_ids=None):
        s = tokens.shape[1]
        h = self.tok_embeddings(tokens)
        mask = torch.ones(s, s, dtype=torch.bool, device=tokens.device).tril()[None]
        if doc_ids is not None:
            mask = mask & (doc_ids[:, :, None] == doc_ids[:, None])
        for layer in self.layers:
            h = layer(h, self.freqs_cis[:s], mask[:, None])
        logits = self.output(self.norm(h))
        if targets is None:
            return logits
        ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        z = torch.logsumexp(logits, -1).pow(2).mean()
        self.last_loss = ce.detach()
        return logits, ce + 1e-4 * z

    def configure_optimizers(self, wd, lr, betas):
        decay, rest = (
            [p for p in self.parameters() if p.dim() >= 2],
            [p for p in self.parameters() if p.dim() < 2],
        )
        return torch.optim.AdamW(
            [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}],
            lr=lr,
            betas=betas,
        )


def get_lr(it, lr, warmup=4, total=20):
    return (
        lr * (it + 1) / warmup
        if it < warmup
        else lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (it - warmup) / (total - warmup))))
    )


def batches(a, micro, device):
    g = torch.Generator().manual_seed(1337)
    while True:
        ids = torch.randint(0, a.vocab, (micro, a.seq + 1), generator=g)
        docs = (torch.rand(micro, a.seq, generator=g) < 0.01).cumsum(1)
        x, y = ids[:, :-1], ids[:, 1:].clone()
        y[:, :-1][docs[:, 1:] != docs[:, :-1]] = -1
        yield x.to(device), y.to(device), docs.to(device)


def main():
    ap = argparse.ArgumentParser()
    for f in fields(ModelArgs):
        ap.add_argument("--" + f.name, type=f.type, default=f.default)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--lr", type=float, default=5e-4)
    o = vars(ap.parse_args())
    micro, accum, lr = o.pop("micro"), o.pop("accum"), o.pop("lr")
    if o["dim"] < 64:
        o["n_heads"], o["n_kv_heads"] = 4, 2
    a = ModelArgs(**o)
    torch.manual_seed(1337)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Transformer(a).to(device)
    optimizer = model.configure_optimizers(0.1, lr, (0.9, 0.95))
    scaler = torch.amp.GradScaler(device, enabled=False)
    data = batches(a, micro, device)
    x, y, docs = next(data)
    for it in range(20):
        t0 = time.time()
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it, lr)
        seen = 0.0
        for _ in range(accum):
            logits, loss = model(x, y, docs)
            loss = loss / accum
            x, y, docs = next(data)
            scaler.scale(loss).backward()
            seen += loss.item()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(
            (
                f"step {it} loss {seen:.6f} ce {model.last_loss.item():.4f} "
                f"{1000 * (time.time() - t0):.0f} ms"
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
