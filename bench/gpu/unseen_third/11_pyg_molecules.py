"""Graph regression on molecule-like graphs with mini-batches of torch_geometric."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.loader import DataLoader  # noqa: E402
from torch_geometric.nn import GINEConv, global_add_pool, global_mean_pool  # noqa: E402

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(4)
torch.use_deterministic_algorithms(True, warn_only=True)

GRAPHS, PER_BATCH, HIDDEN, LAYERS = (40, 8, 16, 2) if SMALL else (1200, 400, 448, 8)


def molecule(g):
    n = int(torch.randint(12, 40, (1,), generator=g))
    chain = torch.arange(n - 1)
    rings = torch.randint(0, n, (2, n // 3), generator=g)
    src = torch.cat([chain, rings[0]])
    dst = torch.cat([chain + 1, rings[1]])
    edge_index = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    atoms = torch.randint(0, 20, (n,), generator=g)
    bonds = torch.randint(0, 4, (src.numel(),), generator=g).repeat(2)
    y = torch.stack([atoms.float().mean(), bonds.float().mean()]).view(1, 2) / 10
    return Data(x=atoms, edge_index=edge_index, edge_attr=bonds, y=y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom, self.bond = nn.Embedding(20, HIDDEN), nn.Embedding(4, HIDDEN)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(LAYERS):
            mlp = nn.Sequential(
                nn.Linear(HIDDEN, 2 * HIDDEN),
                nn.LayerNorm(2 * HIDDEN),
                nn.ReLU(),
                nn.Linear(2 * HIDDEN, HIDDEN),
            )
            self.convs.append(GINEConv(mlp, train_eps=True))
            self.norms.append(nn.LayerNorm(HIDDEN))
        self.out = nn.Sequential(nn.Linear(2 * HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 2))

    def forward(self, data):
        x, e = self.atom(data.x), self.bond(data.edge_attr)
        for conv, norm in zip(self.convs, self.norms):
            h = F.relu(norm(conv(x, data.edge_index, e)))
            x = x + F.dropout(h, 0.1, self.training)
        pooled = [global_mean_pool(x, data.batch), global_add_pool(x, data.batch) / 30]
        return self.out(torch.cat(pooled, -1))


g = torch.Generator().manual_seed(9)
dataset = [molecule(g) for _ in range(GRAPHS)]
train_loader = DataLoader(dataset, batch_size=PER_BATCH, shuffle=True)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(5):
    model.train()
    total = 0.0
    for data in train_loader:
        data = data.to(device)
        optimizer.zero_grad()
        loss = F.l1_loss(model(data), data.y)
        loss.backward()
        optimizer.step()
        total += loss.item() * data.num_graphs
        print(f"loss {loss.item():.9f}", flush=True)
    print(f"Epoch: {epoch:03d}, mean {total / len(dataset):.6f}")
