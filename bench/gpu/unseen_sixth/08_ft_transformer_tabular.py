"""FT-Transformer on mixed numeric / categorical columns (regression), torch.compile'd."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CUDA = torch.cuda.is_available()
dev = torch.device("cuda:0") if CUDA else torch.device("cpu")


class Sizes(NamedTuple):
    rows: int
    batch: int
    n_num: int
    cardinalities: tuple
    d_token: int
    n_blocks: int
    n_heads: int


S = (
    Sizes(
        rows=4096 * 5,
        batch=4096,
        n_num=48,
        cardinalities=(12, 80, 400, 7, 31, 2, 5000, 64, 9, 24, 150, 3),
        d_token=192,
        n_blocks=3,
        n_heads=8,
    )
    if CUDA
    else Sizes(rows=64, batch=32, n_num=5, cardinalities=(3, 4), d_token=16, n_blocks=1, n_heads=2)
)


def make_table(seed: int):
    g = torch.Generator().manual_seed(seed)
    x_num = torch.randn(S.rows, S.n_num, generator=g)
    x_cat = torch.stack([torch.randint(0, c, (S.rows,), generator=g) for c in S.cardinalities], 1)
    w = torch.randn(S.n_num, generator=g) / S.n_num**0.5
    y = (
        x_num @ w
        + 0.5 * torch.sin(2 * x_num[:, 0])
        + 0.3 * (x_cat[:, 0] % 2)
        + 0.1 * torch.randn(S.rows, generator=g)
    )
    return x_num, x_cat, (y - y.mean()) / y.std()


class Tokenizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(S.n_num, S.d_token).uniform_(-0.07, 0.07))
        self.bias = nn.Parameter(
            torch.empty(S.n_num + len(S.cardinalities), S.d_token).uniform_(-0.07, 0.07)
        )
        self.cls = nn.Parameter(torch.zeros(1, 1, S.d_token))
        self.emb = nn.Embedding(sum(S.cardinalities), S.d_token)
        off = torch.tensor((0,) + S.cardinalities[:-1]).cumsum(0)
        self.register_buffer("offsets", off)

    def forward(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
        num = x_num[:, :, None] * self.weight
        cat = self.emb(x_cat + self.offsets)
        tok = torch.cat([num, cat], 1) + self.bias
        return torch.cat([self.cls.expand(len(tok), -1, -1), tok], 1)


class ReGLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return a * F.relu(b)


class TransformerBlock(nn.Module):
    def __init__(self, d: int, h: int):
        super().__init__()
        self.h = h
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        hidden = int(d * 4 / 3)
        self.ffn = nn.Sequential(nn.Linear(d, 2 * hidden), ReGLU(), nn.Linear(hidden, d))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2) / (d // self.h) ** 0.5).softmax(-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, n, d))
        return x + self.ffn(self.norm2(x))


class FTTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = Tokenizer()
        self.blocks = nn.ModuleList(
            TransformerBlock(S.d_token, S.n_heads) for _ in range(S.n_blocks)
        )
        self.head = nn.Sequential(nn.LayerNorm(S.d_token), nn.ReLU(), nn.Linear(S.d_token, 1))

    def forward(self, x_num, x_cat):
        x = self.tok(x_num, x_cat)
        for blk in self.blocks:
            x = blk(x)
        return self.head(x[:, 0]).squeeze(-1)


def iterate(x_num, x_cat, y, idx, size):
    for part in idx.split(size):
        yield x_num[part].to(dev), x_cat[part].to(dev), y[part].to(dev)


@torch.no_grad()
def rmse(model, table, idx) -> float:
    model.eval()
    errs = [(model(a, b) - t).square().sum() for a, b, t in iterate(*table, idx, S.batch)]
    model.train()
    return (torch.stack(errs).sum() / len(idx)).sqrt().item()


def main() -> None:
    torch.manual_seed(11)
    table = make_table(11)
    order = torch.randperm(S.rows, generator=torch.Generator().manual_seed(5))
    n_val = S.batch if S.rows > 2 * S.batch else S.rows // 2
    train_idx, val_idx = order[n_val:], order[:n_val]

    raw = FTTransformer().to(dev)
    model = raw
    if CUDA:  # regional compilation: every block shares one compiled graph, short warm-up
        for blk in raw.blocks:
            blk.compile()
    no_wd = [
        p for n, p in raw.named_parameters() if "norm" in n or "bias" in n or n.startswith("tok")
    ]
    ids = {id(p) for p in no_wd}
    opt = torch.optim.AdamW(
        [
            {"params": [p for p in raw.parameters() if id(p) not in ids]},
            {"params": no_wd, "weight_decay": 0.0},
        ],
        lr=1e-4,
        weight_decay=1e-5,
    )
    best, step, t0 = float("inf"), 0, time.time()
    for epoch in range(2):
        perm = train_idx[
            torch.randperm(len(train_idx), generator=torch.Generator().manual_seed(epoch))
        ]
        for xn, xc, t in iterate(*table, perm, S.batch):
            opt.zero_grad()
            loss = F.mse_loss(model(xn, xc), t)
            loss.backward()
            opt.step()
            step += 1
            print(f"step {step:3d} | loss {loss.item():.8f} | {time.time() - t0:.1f}s", flush=True)
        score = rmse(raw, table, val_idx)
        flag = " <- best" if score < best else ""
        best = min(best, score)
        print(f"epoch {epoch} val rmse {score:.5f}{flag}", flush=True)


if __name__ == "__main__":
    main()
