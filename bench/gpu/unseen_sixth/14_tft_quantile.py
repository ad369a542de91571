"""Temporal Fusion Transformer: multi-horizon quantile forecasts, known future and static inputs."""

from collections import deque
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()


@dataclass(frozen=True)
class TFTConfig:
    n_series: int = 5000 if CUDA else 20
    history: int = 168 if CUDA else 12
    horizon: int = 48 if CUDA else 4
    n_past: int = 8 if CUDA else 2
    n_future: int = 5 if CUDA else 2
    hidden: int = 128 if CUDA else 8
    heads: int = 4 if CUDA else 2
    batch: int = 256 if CUDA else 4
    quantiles: tuple = (0.1, 0.5, 0.9)
    lr: float = 1e-3
    updates: int = 10 if CUDA else 2
    val_every: int = 5 if CUDA else 1


C = TFTConfig()


class WindowSampler:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def sample(self):
        L = C.history + C.horizon
        sid = torch.randint(0, C.n_series, (C.batch,), generator=self.g)
        t0 = torch.randint(0, 1000, (C.batch, 1), generator=self.g)
        t = (t0 + torch.arange(L)).float()
        y = (
            torch.sin(t * 6.2832 / 24 + sid[:, None])
            + 0.5 * torch.sin(t * 6.2832 / 168)
            + 0.2 * torch.randn(C.batch, L, generator=self.g)
        )
        known = torch.stack([torch.sin(t * 6.2832 / (12 * (k + 1))) for k in range(C.n_future)], -1)
        lags = torch.stack([torch.roll(y, k, 1) for k in range(C.n_past)], -1)
        return sid, lags[:, : C.history], known, y[:, C.history :]


class GLU(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Linear(d, 2 * d)

    def forward(self, x):
        return F.glu(self.fc(x), -1)


class GRN(nn.Module):
    def __init__(self, d_in, d, d_out=None, ctx=False):
        super().__init__()
        d_out = d_out or d
        self.fc1, self.fc2 = nn.Linear(d_in, d), nn.Linear(d, d_out)
        self.ctx = nn.Linear(d, d, bias=False) if ctx else None
        self.skip = nn.Linear(d_in, d_out) if d_in != d_out else nn.Identity()
        self.gate, self.norm = GLU(d_out), nn.LayerNorm(d_out)

    def forward(self, x, c=None):
        h = self.fc1(x)
        if c is not None:
            h = h + self.ctx(c)
        return self.norm(self.skip(x) + self.gate(self.fc2(F.elu(h))))


class VariableSelection(nn.Module):
    def __init__(self, n_vars, d):
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(1, d) for _ in range(n_vars))
        self.single = nn.ModuleList(GRN(d, d) for _ in range(n_vars))
        self.weights = GRN(n_vars * d, d, n_vars, ctx=True)

    def forward(self, x, c):
        e = [f(x[..., i : i + 1]) for i, f in enumerate(self.embed)]
        w = self.weights(torch.cat(e, -1), c[:, None]).softmax(-1).unsqueeze(-2)
        v = torch.stack([g(a) for g, a in zip(self.single, e)], -1)
        return (v * w).sum(-1)


class InterpretableAttention(nn.Module):
    """values shared across the heads"""

    def __init__(self, d, h):
        super().__init__()
        self.h, self.dk = h, d // h
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d // h)
        self.out = nn.Linear(d // h, d)

    def forward(self, q, kv, mask):
        B, n, m = q.size(0), q.size(1), kv.size(1)
        s = torch.einsum(
            "bnhd,bmhd->bhnm", self.q(q).view(B, n, self.h, -1), self.k(kv).view(B, m, self.h, -1)
        )
        a = (s / self.dk**0.5).masked_fill(mask, -1e9).softmax(-1)
        return self.out(torch.einsum("bhnm,bmd->bhnd", a, self.v(kv)).mean(1))


class TFT(nn.Module):
    def __init__(self):
        super().__init__()
        d = C.hidden
        self.static = nn.Embedding(C.n_series, d)
        self.ctx = nn.ModuleDict({k: GRN(d, d) for k in ("select", "enrich", "h", "c")})
        self.vs_past = VariableSelection(C.n_past + C.n_future, d)
        self.vs_fut = VariableSelection(C.n_future, d)
        self.enc, self.dec = nn.LSTM(d, d, batch_first=True), nn.LSTM(d, d, batch_first=True)
        self.gate1, self.norm1 = GLU(d), nn.LayerNorm(d)
        self.enrich = GRN(d, d, ctx=True)
        self.att = InterpretableAttention(d, C.heads)
        self.gate2, self.norm2 = GLU(d), nn.LayerNorm(d)
        self.ff = GRN(d, d)
        self.gate3, self.norm3 = GLU(d), nn.LayerNorm(d)
        self.head = nn.Linear(d, len(C.quantiles))

    def forward(self, sid, past, known):
        s = self.static(sid)
        cs = self.ctx["select"](s)
        xp = self.vs_past(torch.cat([past, known[:, : C.history]], -1), cs)
        xf = self.vs_fut(known[:, C.history :], cs)
        hp, state = self.enc(xp, (self.ctx["h"](s)[None], self.ctx["c"](s)[None]))
        hf, _ = self.dec(xf, state)
        temporal = self.norm1(self.gate1(torch.cat([hp, hf], 1)) + torch.cat([xp, xf], 1))
        e = self.enrich(temporal, self.ctx["enrich"](s)[:, None])
        L = e.size(1)
        mask = torch.ones(L, L, dtype=torch.bool, device=e.device).triu(1)
        a = self.norm2(self.gate2(self.att(e, e, mask)) + e)
        z = self.norm3(self.gate3(self.ff(a)) + temporal)
        return self.head(z[:, C.history :])


def quantile_loss(pred, y):
    q = torch.tensor(C.quantiles, device=pred.device)
    err = y.unsqueeze(-1) - pred
    return torch.maximum(q * err, (q - 1) * err).sum(-1).mean()


def fit():
    torch.manual_seed(77)
    dev = torch.device("cuda" if CUDA else "cpu")
    model = TFT().to(dev)
    opt = torch.optim.Adam(model.parameters(), lr=C.lr)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    train, valid = WindowSampler(1), WindowSampler(2)
    recent = deque(maxlen=5)
    for u in range(1, C.updates + 1):
        sid, past, known, y = (t.to(dev) for t in train.sample())
        loss = quantile_loss(model(sid, past, known), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        recent.append(loss.item())
        print(f"update {u} loss {loss.item():.8f} avg5 {sum(recent) / len(recent):.5f}", flush=True)
        if u % C.val_every == 0:
            model.eval()
            with torch.no_grad():
                sid, past, known, y = (t.to(dev) for t in valid.sample())
                v = quantile_loss(model(sid, past, known), y)
            plateau.step(v.item())
            print(f"   validation pinball {v.item():.6f}", flush=True)
            model.train()


if __name__ == "__main__":
    fit()
