# %% [markdown]
# # CTR prediction baseline: DCN-V2 (low-rank mixture of cross layers) + MLP tower
# Big batches, one fused embedding table, log-loss and AUC on a hold-out.

# %%
import gc

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
SEED = 777
N_SPARSE, N_DENSE = 26, 13
EMB_DIM = 48 if CUDA else 4
CARD = np.array([200_000] * 6 + [20_000] * 10 + [500] * 10) if CUDA else np.array([30] * 26)
BATCH = 32_768 if CUDA else 64
N_BATCHES = 10 if CUDA else 3
HIDDEN = (1024, 512, 256) if CUDA else (16, 8)
RANK, EXPERTS, CROSS_LAYERS = (128, 2, 3) if CUDA else (4, 2, 2)


def seed_everything(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)


seed_everything(SEED)
DEVICE = "cuda" if CUDA else "cpu"


# %% synthetic click logs
def make_logs(n, seed):
    rng = np.random.default_rng(seed)
    sparse = (rng.random((n, N_SPARSE)) ** 3 * CARD).astype(np.int64)
    dense = np.log1p(rng.exponential(3.0, (n, N_DENSE))).astype(np.float32)
    score = dense[:, 0] - dense[:, 1] + (sparse[:, 0] % 7 == 0) * 1.5 - 1.0
    click = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.float32)
    return torch.from_numpy(sparse), torch.from_numpy(dense), torch.from_numpy(click)


# %% model
class CrossMix(nn.Module):
    def __init__(self, d, rank, experts):
        super().__init__()
        self.u = nn.Parameter(torch.randn(experts, d, rank) * d**-0.5)
        self.c = nn.Parameter(torch.randn(experts, rank, rank) * rank**-0.5)
        self.v = nn.Parameter(torch.randn(experts, rank, d) * rank**-0.5)
        self.bias = nn.Parameter(torch.zeros(d))
        self.gate = nn.Linear(d, experts, bias=False)

    def forward(self, x0, x):
        gates = self.gate(x).softmax(-1)
        out = 0
        for e in range(len(self.u)):
            low = torch.tanh(torch.tanh(x @ self.u[e]) @ self.c[e])
            out = out + gates[:, e : e + 1] * (x0 * (low @ self.v[e] + self.bias))
        return out + x


class DCNv2(nn.Module):
    def __init__(self):
        super().__init__()
        offsets = np.concatenate([[0], np.cumsum(CARD)[:-1]])
        self.register_buffer("offsets", torch.from_numpy(offsets).long())
        self.table = nn.Embedding(int(CARD.sum()), EMB_DIM)
        nn.init.normal_(self.table.weight, std=0.01)
        d = N_SPARSE * EMB_DIM + N_DENSE
        self.bn = nn.BatchNorm1d(N_DENSE)
        self.cross = nn.ModuleList(CrossMix(d, RANK, EXPERTS) for _ in range(CROSS_LAYERS))
        mlp, width = [], d
        for h in HIDDEN:
            mlp += [nn.Linear(width, h), nn.BatchNorm1d(h), nn.ReLU()]
            width = h
        self.mlp = nn.Sequential(*mlp)
        self.out = nn.Linear(d + width, 1)

    def forward(self, sparse, dense):
        e = self.table(sparse + self.offsets).flatten(1)
        x0 = torch.cat([e, self.bn(dense)], 1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.out(torch.cat([x, self.mlp(x0)], 1)).squeeze(1)


def auc(y, p):
    order = p.argsort()
    rank = np.empty(len(p))
    rank[order] = np.arange(1, len(p) + 1)
    pos = y.sum()
    return (rank[y == 1].sum() - pos * (pos + 1) / 2) / (pos * (len(y) - pos))


# %% train
sparse, dense, click = make_logs(BATCH * N_BATCHES, SEED)
va_sparse, va_dense, va_click = make_logs(BATCH // 2, SEED + 1)
model = DCNv2().to(DEVICE)
opt = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-6)
print(sum(p.numel() for p in model.parameters()) // 1000, "k parameters")

model.train()
for b, idx in enumerate(torch.randperm(len(click)).split(BATCH)):
    logit = model(sparse[idx].to(DEVICE), dense[idx].to(DEVICE))
    loss = F.binary_cross_entropy_with_logits(logit, click[idx].to(DEVICE))
    loss = loss + 1e-6 * model.table.weight.square().mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"batch {b:02d} loss {loss.item():.8f}", flush=True)
del sparse, dense, click
gc.collect()

# %% validate
model.eval()
with torch.no_grad():
    prob = torch.sigmoid(model(va_sparse.to(DEVICE), va_dense.to(DEVICE))).cpu()
print(
    "holdout bce %.5f auc %.4f"
    % (F.binary_cross_entropy(prob, va_click).item(), auc(va_click.numpy(), prob.numpy()))
)
