"""Documents of different lengths packed into rows; block-diagonal causal masks for SDPA, positions
begin anew in every document, the loss is a mean over the tokens that count."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, LEN = (2, 32) if SMALL else (6, 1024)
D, H, KV, L, V = (32, 4, 2, 2, 120) if SMALL else (768, 12, 4, 10, 24000)


def pack(g):
    """First-fit: documents until the row is full; what does not fit is cut."""
    ids, doc, pos = (torch.zeros(ROWS, LEN, dtype=torch.long) for _ in range(3))
    for r in range(ROWS):
        at, k = 0, 1
        while at < LEN - 4:
            n = min(int(torch.randint(LEN // 16, LEN // 2, (1,), generator=g)), LEN - at)
            ids[r, at : at + n] = torch.randint(1, V, (n,), generator=g)
            doc[r, at : at + n], pos[r, at : at + n] = k, torch.arange(n)
            at, k = at + n, k + 1
    labels = torch.full_like(ids, -100)
    same = doc[:, 1:] == doc[:, :-1]
    labels[:, :-1] = torch.where(same & (doc[:, 1:] > 0), ids[:, 1:], -100)
    return ids.to(dev), doc.to(dev), pos.to(dev), labels.to(dev)


def rope(x, pos):
    half = x.size(-1) // 2
    freq = 10000 ** (-torch.arange(half, device=x.device) / half)
    a = pos[:, None, :, None].float() * freq
    c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
    u, v = x[..., :half], x[..., half:]
    return torch.cat([u * c - v * s, u * s + v * c], dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        hd = D // H
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.q, self.k = nn.Linear(D, D, bias=False), nn.Linear(D, KV * hd, bias=False)
        self.v, self.o = nn.Linear(D, KV * hd, bias=False), nn.Linear(D, D, bias=False)
        inner = int(D * 8 / 3) // 8 * 8
        self.gate, self.up = nn.Linear(D, inner, bias=False), nn.Linear(D, inner, bias=False)
        self.down = nn.Linear(inner, D, bias=False)

    def forward(self, x, pos, mask):
        b, t, _ = x.shape
        h = self.n1(x)
        q = rope(self.q(h).view(b, t, H, -1).transpose(1, 2), pos)
        k = rope(self.k(h).view(b, t, KV, -1).transpose(1, 2), pos)
        v = self.v(h).view(b, t, KV, -1).transpose(1, 2)
        k, v = (z.repeat_interleave(H // KV, dim=1) for z in (k, v))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, D))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm = nn.RMSNorm(D)

    def forward(self, ids, doc, pos):
        mask = (doc[:, :, None] == doc[:, None, :]).tril().unsqueeze(1)
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, pos, mask)
        return F.linear(self.norm(x), self.emb.weight)


torch.manual_seed(88)
model = LM().to(dev)
for p in model.parameters():
    if p.dim() > 1:
        nn.init.normal_(p, std=0.02)
opt = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1)
g = torch.Generator().manual_seed(89)
for step in range(16):
    ids, doc, pos, labels = pack(g)
    with torch.autocast(dev.type, dtype=torch.bfloat16):
        logits = model(ids, doc, pos)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    print(f"step {step} tokens {int((labels >= 0).sum())} loss {loss.item():.9f}", flush=True)
