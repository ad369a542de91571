# Low-rank adapters written by hand on a frozen decoder: only the adapters learn, the head is frozen
# too, a cosine schedule, gradients clipped.
# tiny: --d 32 --layers 2 --batch 4 --seq 16 --vocab 64 --device cpu
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

cli = argparse.ArgumentParser()
cli.add_argument("--d", type=int, default=1024)
cli.add_argument("--layers", type=int, default=12)
cli.add_argument("--batch", type=int, default=12)
cli.add_argument("--seq", type=int, default=512)
cli.add_argument("--vocab", type=int, default=16000)
cli.add_argument("--rank", type=int, default=8)
cli.add_argument("--device", default="cuda")
args = cli.parse_args()
torch.manual_seed(3)


class LoRA(nn.Module):
    def __init__(self, base, r):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * 2.0


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.heads = max(1, d // 64)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            y.view(b, t, self.heads, -1).transpose(1, 2)
            for y in self.qkv(self.n1(x)).chunk(3, dim=-1)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(args.vocab, args.d), nn.Embedding(args.seq, args.d)
        self.layers = nn.ModuleList(Layer(args.d) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(args.d), nn.Linear(args.d, args.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


model = Decoder()
model.requires_grad_(False)
for layer in model.layers:
    for name in ("qkv", "proj", "up", "down"):
        setattr(layer, name, LoRA(getattr(layer, name), args.rank))
model.to(args.device)
learn = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(learn, lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
gen = torch.Generator().manual_seed(0)
for it in range(12):
    ids = torch.randint(0, args.vocab, (args.batch, args.seq + 1), generator=gen).to(args.device)
    ids = ids[:, : args.seq]
    logits = model(ids)
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, args.vocab), ids[:, 1:].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(learn, 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    sched.step()
    print("step %d loss %.9g" % (it, loss.item()), flush=True)
