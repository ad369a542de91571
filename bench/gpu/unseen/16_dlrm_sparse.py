import os
import sys

import numpy as np
import torch
import torch.nn as nn

"""
DLRM on click-log-like noise.  Embedding bags give sparse gradients (SparseAdam),
the dense towers use Adagrad.  Two optimizers, one backward.
"""

TINY = os.environ.get("SMALL") == "1"
NUM_TABLES = 4 if TINY else 26
ROWS = 100 if TINY else 50_000
EMB = 8 if TINY else 64
BATCH = 32 if TINY else 131_072
BAG = 2
BOT = [13, 32, EMB] if TINY else [13, 512, 256, EMB]
TOP = [64, 32, 1] if TINY else [1024, 1024, 512, 256, 1]
STEPS = 20


def create_mlp(ln, sigmoid_last=False):
    layers = []
    for i in range(len(ln) - 1):
        n, m = ln[i], ln[i + 1]
        LL = nn.Linear(n, m)
        rs = np.random.RandomState(n * 131 + m)
        LL.weight.data = torch.tensor(
            rs.normal(0.0, np.sqrt(2 / (m + n)), size=(m, n)).astype(np.float32)
        )
        LL.bias.data = torch.tensor(rs.normal(0.0, np.sqrt(1 / m), size=m).astype(np.float32))
        layers.append(LL)
        if i < len(ln) - 2 or not sigmoid_last:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb_l = nn.ModuleList()
        for k in range(NUM_TABLES):
            EE = nn.EmbeddingBag(ROWS, EMB, mode="sum", sparse=True)
            nn.init.uniform_(EE.weight, -np.sqrt(1 / ROWS), np.sqrt(1 / ROWS))
            self.emb_l.append(EE)
        self.bot_l = create_mlp(BOT)
        nf = NUM_TABLES + 1
        self.top_l = create_mlp([EMB + nf * (nf - 1) // 2] + TOP, sigmoid_last=True)
        li = torch.tensor([i for i in range(nf) for j in range(i)])
        lj = torch.tensor([j for i in range(nf) for j in range(i)])
        self.register_buffer("flat", li * nf + lj)

    def interact_features(self, x, ly):
        B, d = x.shape
        T = torch.cat([x] + ly, dim=1).view(B, -1, d)
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        Zflat = Z.view(B, -1).index_select(1, self.flat)
        return torch.cat([x, Zflat], dim=1)

    def forward(self, dense_x, lS_i):
        x = self.bot_l(dense_x)
        ly = [E(lS_i[k]) for k, E in enumerate(self.emb_l)]
        return self.top_l(self.interact_features(x, ly)).squeeze(1)


def make_batch(rng):
    dense = np.log1p(rng.exponential(2.0, size=(BATCH, 13))).astype(np.float32)
    # power-law-ish popularity
    u = rng.random_sample((NUM_TABLES, BATCH, BAG))
    idx = np.minimum((ROWS * u**3).astype(np.int64), ROWS - 1)
    score = dense[:, 0] - dense[:, 1] + (idx[0, :, 0] % 3 - 1)
    y = (score + rng.normal(size=BATCH) > 0).astype(np.float32)
    return torch.from_numpy(dense), torch.from_numpy(idx), torch.from_numpy(y)


def main(argv):
    np.random.seed(123)
    torch.manual_seed(123)
    rng = np.random.RandomState(123)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    dlrm = DLRM().to(device)
    dense_params = [p for n, p in dlrm.named_parameters() if not n.startswith("emb_l")]
    opt_sparse = torch.optim.SparseAdam(list(dlrm.emb_l.parameters()), lr=1e-3)
    opt_dense = torch.optim.Adagrad(dense_params, lr=0.01)
    loss_fn = nn.BCEWithLogitsLoss(reduction="mean")
    cached = [make_batch(rng) for _ in range(2 if TINY else 4)]

    for j in range(STEPS):
        X, lS_i, T = cached[j % len(cached)]
        X, lS_i, T = X.to(device), lS_i.to(device), T.to(device)
        Z = dlrm(X, lS_i)
        E = loss_fn(Z, T)
        opt_sparse.zero_grad()
        opt_dense.zero_grad()
        E.backward()
        opt_dense.step()
        opt_sparse.step()
        if j % 2 == 1 or j == 0:
            print(f"step {j} loss {E.detach().cpu().item():.6f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
