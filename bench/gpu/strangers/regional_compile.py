# Only the blocks of an encoder are compiled, each on its own, as is advised for short start times;
# masked reconstruction of patches, AdamW.
# tiny: --d 32 --layers 2 --batch 4 --tokens 12 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--d", type=int, default=768)
ap.add_argument("--layers", type=int, default=12)
ap.add_argument("--batch", type=int, default=64)
ap.add_argument("--tokens", type=int, default=196)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(14)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2, self.h = nn.LayerNorm(d), nn.LayerNorm(d), max(1, d // 64)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.a, self.b = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(y)
        return x + self.b(F.gelu(self.a(self.n2(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(768, a.d), nn.Linear(a.d, 768)
        self.pos = nn.Parameter(0.02 * torch.randn(1, a.tokens, a.d))
        self.blocks = nn.ModuleList(Block(a.d) for _ in range(a.layers))

    def forward(self, x):
        x = self.inp(x) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.out(x)


model = Encoder().to(a.device)
for block in model.blocks:
    block.compile()
opt = torch.optim.AdamW(model.parameters(), 1e-4)
rng = torch.Generator().manual_seed(6)
for step in range(14):
    x = torch.randn(a.batch, a.tokens, 768, generator=rng).to(a.device)
    hidden = torch.rand(a.batch, a.tokens, generator=rng).to(a.device) < 0.6
    out = model(x * ~hidden[..., None])
    loss = ((out - x) ** 2)[hidden].mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
