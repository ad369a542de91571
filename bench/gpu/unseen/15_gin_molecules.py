"""
GIN (with edge features, virtual-node free) for graph-level regression on random
"molecules".  Graphs are collated into one disconnected graph by hand, so no PyG needed.
"""

import os
import random
from dataclasses import dataclass

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.use_deterministic_algorithms(True, warn_only=True)


@dataclass
class Config:
    graphs_per_batch: int = 2560
    steps: int = 14
    emb_dim: int = 300
    num_layers: int = 5
    min_nodes: int = 16
    max_nodes: int = 48
    pool: int = 4000
    lr: float = 1e-3
    seed: int = 5

    @classmethod
    def from_env(cls):
        if os.environ.get("SMALL") == "1":
            return cls(
                graphs_per_batch=8, emb_dim=16, num_layers=2, min_nodes=4, max_nodes=9, pool=40
            )
        return cls()


class Molecules(Dataset):
    def __init__(self, cfg):
        self.cfg = cfg

    def __len__(self):
        return self.cfg.pool

    def __getitem__(self, i):
        rng = random.Random(self.cfg.seed * 100003 + i)
        n = rng.randint(self.cfg.min_nodes, self.cfg.max_nodes)
        atoms = [rng.randrange(20) for _ in range(n)]
        edges = [(j, rng.randrange(max(0, j - 3), j)) for j in range(1, n)]  # random tree
        for _ in range(n // 6):  # rings
            a, b = rng.sample(range(n), 2)
            edges.append((a, b))
        bonds = [rng.randrange(4) for _ in edges]
        target = sum(a % 5 for a in atoms) / n + 0.1 * sum(bonds) / len(bonds)
        return atoms, edges, bonds, target


def collate(items):
    atoms, src, dst, bonds, batch, ys, off = [], [], [], [], [], [], 0
    for gi, (a, e, b, y) in enumerate(items):
        atoms += a
        for (u, v), t in zip(e, b):
            src += [u + off, v + off]
            dst += [v + off, u + off]
            bonds += [t, t]
        batch += [gi] * len(a)
        ys.append(y)
        off += len(a)
    return dict(
        x=torch.tensor(atoms),
        edge_index=torch.tensor([src, dst]),
        edge_attr=torch.tensor(bonds),
        batch=torch.tensor(batch),
        y=torch.tensor(ys),
        num_graphs=len(items),
    )


class GINEConv(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(d, 2 * d), nn.BatchNorm1d(2 * d), nn.ReLU(), nn.Linear(2 * d, d)
        )
        self.eps = nn.Parameter(torch.zeros(1))
        self.bond_encoder = nn.Embedding(4, d)

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        msg = F.relu(x.index_select(0, src) + self.bond_encoder(edge_attr))
        agg = torch.zeros_like(x).index_add_(0, dst, msg)
        return self.mlp((1 + self.eps) * x + agg)


class GIN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.emb_dim
        self.atom_encoder = nn.Embedding(20, d)
        self.convs = nn.ModuleList(GINEConv(d) for _ in range(cfg.num_layers))
        self.bns = nn.ModuleList(nn.BatchNorm1d(d) for _ in range(cfg.num_layers))
        self.readout = nn.Linear(d, 1)

    def forward(self, data):
        h = self.atom_encoder(data["x"])
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns)):
            z = bn(conv(h, data["edge_index"], data["edge_attr"]))
            if i < len(self.convs) - 1:
                z = F.relu(z)
            h = F.dropout(z, 0.1, training=self.training) + h
        pooled = h.new_zeros(data["num_graphs"], h.size(1)).index_add_(0, data["batch"], h)
        count = torch.bincount(data["batch"], minlength=data["num_graphs"]).unsqueeze(1)
        return self.readout(pooled / count).squeeze(-1)


def run(cfg):
    torch.manual_seed(cfg.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Molecules(cfg),
        batch_size=cfg.graphs_per_batch,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
        generator=torch.Generator().manual_seed(cfg.seed),
    )
    model = GIN(cfg).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    step = 0
    while step < cfg.steps:
        for data in loader:
            data = {k: (v.to(device) if torch.is_tensor(v) else v) for k, v in data.items()}
            model.train()
            optimizer.zero_grad(set_to_none=True)
            loss = F.l1_loss(model(data), data["y"])
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"step {step} loss {loss.item():.6f} nodes {data['x'].numel()}")
            step += 1
            if step >= cfg.steps:
                break


run(Config.from_env())
