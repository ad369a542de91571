"""Graphormer: transformer on molecules with degree, path and edge biases (graph regression)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split

CUDA = torch.cuda.is_available()
DEV = torch.device("cuda") if CUDA else torch.device("cpu")

conf = {
    "max_nodes": 96 if CUDA else 10,
    "n_graphs": 1120 if CUDA else 12,
    "batch_size": 128 if CUDA else 4,
    "num_heads": 16 if CUDA else 2,
    "hidden": 512 if CUDA else 16,
    "ffn": 1024 if CUDA else 16,
    "layers": 8 if CUDA else 2,
    "max_dist": 12,
    "edge_types": 6,
    "atom_types": 40,
    "peak_lr": 2e-4,
    "warmup": 3,
}


class RandomMolecules(Dataset):
    """random trees with a few ring closures; target depends on atoms and on the diameter"""

    def __init__(self, n):
        g = torch.Generator().manual_seed(321)
        self.graphs = [self._one(g) for _ in range(n)]

    def _one(self, g):
        n = int(torch.randint(conf["max_nodes"] // 2, conf["max_nodes"] + 1, (1,), generator=g))
        atoms = torch.randint(1, conf["atom_types"], (n,), generator=g)
        edge = torch.zeros(n, n, dtype=torch.long)
        child = torch.arange(1, n)
        parent = (child - 1 - torch.randint(0, 3, (n - 1,), generator=g)).clamp(min=0)
        bond = torch.randint(1, conf["edge_types"], (n - 1,), generator=g)
        edge[child, parent] = bond
        edge[parent, child] = bond
        a, b = torch.randint(0, n, (2, n // 8 + 1), generator=g)
        edge[a, b] = edge[b, a] = 1
        adj = (edge > 0).float()
        adj.fill_diagonal_(0)
        dist = torch.full((n, n), conf["max_dist"], dtype=torch.long)
        reach = torch.eye(n)
        dist[reach > 0] = 0
        for d in range(1, conf["max_dist"]):
            reach = ((reach @ adj + reach) > 0).float()
            dist[(reach > 0) & (dist == conf["max_dist"])] = d
        y = atoms.float().mean() / conf["atom_types"] + dist.float().mean() / conf["max_dist"]
        return atoms, edge, dist, adj.sum(1).long().clamp(max=15), y

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


def collate(graphs):
    n = max(len(g[0]) for g in graphs)
    B = len(graphs)
    atoms, degree = torch.zeros(B, n, dtype=torch.long), torch.zeros(B, n, dtype=torch.long)
    edge, dist = torch.zeros(B, n, n, dtype=torch.long), torch.full((B, n, n), conf["max_dist"])
    for i, (a, e, d, deg, _) in enumerate(graphs):
        k = len(a)
        atoms[i, :k], degree[i, :k], edge[i, :k, :k], dist[i, :k, :k] = a, deg, e, d
    return dict(
        atoms=atoms, degree=degree, edge=edge, dist=dist, y=torch.stack([g[4] for g in graphs])
    )


class BiasedAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h, self.dk = heads, d // heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, bias):
        B, n, d = x.shape
        split = lambda t: t.view(B, n, self.h, self.dk).transpose(1, 2)
        scores = split(self.q(x)) * self.dk**-0.5 @ split(self.k(x)).transpose(2, 3)
        scores = scores + bias
        w = torch.softmax(scores, dim=-1)
        return self.o((w @ split(self.v(x))).transpose(1, 2).reshape(B, n, d))


class EncoderLayer(nn.Module):
    def __init__(self, d, ffn, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = BiasedAttention(d, heads)
        self.ff = nn.Sequential(nn.Linear(d, ffn), nn.GELU(), nn.Linear(ffn, d))

    def forward(self, x, bias):
        x = x + self.att(self.ln1(x), bias)
        return x + self.ff(self.ln2(x))


class Graphormer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, H = c["hidden"], c["num_heads"]
        self.atom = nn.Embedding(c["atom_types"], d, padding_idx=0)
        self.deg = nn.Embedding(16, d)
        self.spd = nn.Embedding(c["max_dist"] + 1, H)
        self.edge = nn.Embedding(c["edge_types"], H, padding_idx=0)
        self.virtual = nn.Parameter(torch.zeros(1, 1, d))
        self.virtual_dist = nn.Parameter(torch.zeros(1, H, 1, 1))
        self.layers = nn.ModuleList(EncoderLayer(d, c["ffn"], H) for _ in range(c["layers"]))
        self.final = nn.LayerNorm(d)
        self.out = nn.Linear(d, 1)

    def forward(self, b):
        B, n = b["atoms"].shape
        x = self.atom(b["atoms"]) + self.deg(b["degree"])
        x = torch.cat([self.virtual.expand(B, 1, -1), x], 1)
        inner = (self.spd(b["dist"]) + self.edge(b["edge"])).permute(0, 3, 1, 2)
        bias = self.virtual_dist.expand(B, -1, n + 1, n + 1).clone()
        bias[:, :, 1:, 1:] = inner
        pad = F.pad(b["atoms"] == 0, (1, 0))
        bias = bias.masked_fill(pad[:, None, None, :], float("-inf"))
        for layer in self.layers:
            x = layer(x, bias)
        return self.out(self.final(x)[:, 0]).squeeze(-1)


def evaluate(model, loader):
    model.eval()
    err, cnt = 0.0, 0
    with torch.no_grad():
        for b in loader:
            b = {k: v.to(DEV) for k, v in b.items()}
            err += (model(b) - b["y"]).abs().sum().item()
            cnt += len(b["y"])
    return err / cnt


if __name__ == "__main__":
    torch.manual_seed(321)
    full = RandomMolecules(conf["n_graphs"])
    n_val = len(full) // 5
    train_set, val_set = random_split(
        full, [len(full) - n_val, n_val], torch.Generator().manual_seed(1)
    )
    train_loader = DataLoader(
        train_set,
        conf["batch_size"],
        shuffle=True,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(2),
    )
    val_loader = DataLoader(val_set, conf["batch_size"], collate_fn=collate)
    net = Graphormer(conf).to(DEV)
    opt = torch.optim.AdamW(net.parameters(), lr=conf["peak_lr"], weight_decay=0.01, eps=1e-8)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / conf["warmup"], 1.0))
    for batch in train_loader:
        net.train()
        batch = {k: v.to(DEV) for k, v in batch.items()}
        loss = F.l1_loss(net(batch), batch["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        warm.step()
        opt.zero_grad()
        print(f"[train] loss {loss.item():.8f} (nodes {batch['atoms'].shape[1]})", flush=True)
    print(f"[valid] MAE {evaluate(net, val_loader):.6f}")
