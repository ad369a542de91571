"""A language model with segment memories: each layer attends to what it saw in the segment before,
the memories come back from the model, detached, and go in again."""

# tiny: --d 32 --layers 2 --batch 4 --seq 12 --mem 8 --vocab 80 --device cpu
import argparse

import torch
from torch import nn
from torch.nn import functional as F

p = argparse.ArgumentParser()
p.add_argument("--d", type=int, default=768)
p.add_argument("--layers", type=int, default=10)
p.add_argument("--batch", type=int, default=24)
p.add_argument("--seq", type=int, default=256)
p.add_argument("--mem", type=int, default=256)
p.add_argument("--vocab", type=int, default=12000)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(9)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.heads = max(1, d // 64)
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, memory, mask):
        b, t, d = x.shape
        both = torch.cat([memory, x], 1)
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (
            y.view(b, both.shape[1], self.heads, -1).transpose(1, 2)
            for y in self.kv(both).chunk(2, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.n1(x + self.o(y.transpose(1, 2).reshape(b, t, d)))
        return self.n2(x + self.ff(x))


class XL(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.d)
        self.layers = nn.ModuleList(Layer(a.d) for _ in range(a.layers))
        self.out = nn.Linear(a.d, a.vocab)

    def forward(self, ids, targets, mems):
        x, new = self.emb(ids), []
        t, m = ids.shape[1], mems[0].shape[1]
        mask = torch.ones(t, t + m, dtype=torch.bool, device=ids.device).tril(m)
        for layer, mem in zip(self.layers, mems):
            new.append(torch.cat([mem, x], 1)[:, -a.mem :].detach())
            x = layer(x, mem, mask)
        loss = F.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())
        return loss, new


model = XL().to(a.device)
opt = torch.optim.Adam(model.parameters(), 2.5e-4)
rng = torch.Generator().manual_seed(3)
text = torch.randint(0, a.vocab, (a.batch, 12 * a.seq + 1), generator=rng)
mems = [torch.zeros(a.batch, a.mem, a.d, device=a.device) for _ in range(a.layers)]
for i in range(12):
    x = text[:, i * a.seq : (i + 1) * a.seq].to(a.device)
    y = text[:, i * a.seq + 1 : (i + 1) * a.seq + 1].to(a.device)
    loss, mems = model(x, y, mems)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
    print("step %d loss %.9g" % (i, loss.item()), flush=True)
