# A decision transformer: returns, states and actions interleaved into one sequence, a causal mask
# built in forward, only the action head is trained.
# tiny: --dim 16 --blocks 2 --batch 4 --context 6 --device cpu
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--dim", type=int, default=384)
ap.add_argument("--blocks", type=int, default=6)
ap.add_argument("--batch", type=int, default=96)
ap.add_argument("--context", type=int, default=90)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(5)
np.random.seed(5)


class CausalBlock(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-1, -2)) / (d // self.heads) ** 0.5
        w = w.masked_fill(mask[:t, :t], float("-inf")).softmax(-1)
        x = x + self.out((w @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    def __init__(self, state=17, action=6):
        super().__init__()
        d = a.dim
        self.time = nn.Embedding(1000, d)
        self.r, self.s, self.u = nn.Linear(1, d), nn.Linear(state, d), nn.Linear(action, d)
        self.ln = nn.LayerNorm(d)
        self.blocks = nn.ModuleList(CausalBlock(d) for _ in range(a.blocks))
        self.head = nn.Sequential(nn.Linear(d, action), nn.Tanh())

    def forward(self, rtg, states, actions, steps):
        t = self.time(steps)
        x = torch.stack([self.r(rtg) + t, self.s(states) + t, self.u(actions) + t], 2)
        x = self.ln(x.flatten(1, 2))
        n = x.size(1)
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x[:, 1::3])


model = DecisionTransformer().to(a.device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 5, 1))


def sample():
    s = np.random.randn(a.batch, a.context, 17).astype("float32")
    u = np.tanh(np.random.randn(a.batch, a.context, 6)).astype("float32")
    r = np.random.rand(a.batch, a.context, 1).astype("float32")
    t = np.random.randint(0, 900, (a.batch, 1)) + np.arange(a.context)[None]
    return [torch.from_numpy(v).to(a.device) for v in (r, s, u, t)]


for step in range(12):
    r, s, u, t = sample()
    guess = model(r, s, u, t)
    loss = F.mse_loss(guess, u)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
    warm.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
