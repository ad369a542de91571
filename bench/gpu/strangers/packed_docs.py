# Pretraining on packed documents: one row of many documents, attention kept inside each document by
# a block mask, rotary positions that begin anew; there is no batch dimension to speak of.
# tiny: --d 16 --layers 2 --tokens 48 --vocab 60 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--d", type=int, default=1024)
ap.add_argument("--layers", type=int, default=10)
ap.add_argument("--tokens", type=int, default=4096)
ap.add_argument("--vocab", type=int, default=16000)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(4)
H = max(1, a.d // 64)


def rotate(x, pos):
    half = x.size(-1) // 2
    f = 1.0 / 10000 ** (torch.arange(half, device=x.device) / half)
    ang = pos[:, None].float() * f
    c, s = ang.cos(), ang.sin()
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat([x1 * c - x2 * s, x1 * s + x2 * c], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(a.d), nn.LayerNorm(a.d)
        self.qkv, self.o = nn.Linear(a.d, 3 * a.d), nn.Linear(a.d, a.d)
        self.gate, self.up, self.down = (
            nn.Linear(a.d, 3 * a.d),
            nn.Linear(a.d, 3 * a.d),
            nn.Linear(3 * a.d, a.d),
        )

    def forward(self, x, mask, pos):
        n = x.size(0)
        q, k, v = self.qkv(self.n1(x)).view(n, 3, H, -1).permute(1, 2, 0, 3)
        y = F.scaled_dot_product_attention(
            rotate(q, pos)[None], rotate(k, pos)[None], v[None], attn_mask=mask
        )
        x = x + self.o(y[0].transpose(0, 1).reshape(n, a.d))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.d)
        self.blocks = nn.ModuleList([Block() for _ in range(a.layers)])
        self.norm, self.head = nn.LayerNorm(a.d), nn.Linear(a.d, a.vocab, bias=False)

    def forward(self, tokens, doc):
        starts = torch.cat([doc.new_ones(1), (doc[1:] != doc[:-1]).long()])
        index = torch.arange(len(doc), device=doc.device)
        pos = index - torch.cummax(index * starts, 0).values
        mask = (doc[:, None] == doc[None]) & (index[:, None] >= index[None])
        x = self.emb(tokens)
        for b in self.blocks:
            x = b(x, mask, pos)
        return self.head(self.norm(x))


model = Packed().to(a.device)
opt = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.95))
rng = torch.Generator().manual_seed(6)
for step in range(12):
    tokens = torch.randint(0, a.vocab, (a.tokens + 1,), generator=rng)
    cuts = torch.randint(1, a.tokens, (5,), generator=rng).sort().values
    doc = torch.bucketize(torch.arange(a.tokens), cuts)
    tokens, doc = tokens.to(a.device), doc.to(a.device)
    logits = model(tokens[:-1], doc)
    loss = F.cross_entropy(logits, tokens[1:])
    loss.backward()
    opt.step()
    opt.zero_grad()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
