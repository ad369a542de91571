"""Delay of digital circuits from their graph: principal neighbourhood aggregation (PyG)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import BatchNorm, PNAConv, global_add_pool, global_max_pool
from torch_geometric.utils import degree

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(41)

batch_size = 128 if large else 8
gates = (100, 160) if large else (8, 16)
hidden = 128 if large else 16
depth = 5 if large else 2
kinds = 8
cost = torch.linspace(0.5, 2.0, kinds).tolist()


def circuit(g):
    """A random netlist in topological order; the target is the delay of its longest path."""
    n = int(torch.randint(*gates, (1,), generator=g))
    kind = torch.randint(0, kinds, (n,), generator=g)
    src, dst = [], []
    own = [cost[k] for k in kind.tolist()]
    arrival = list(own)
    for v in range(1, n):
        low = max(0, v - 12)
        for u in torch.randint(low, v, (3,), generator=g).tolist():
            src += [u, v]
            dst += [v, u]
            arrival[v] = max(arrival[v], arrival[u] + own[v])
    edge_index = torch.tensor([src, dst])
    way = torch.arange(len(src)) % 2
    arrival = torch.tensor(arrival) / n**0.5
    y = arrival.max().view(1)
    return Data(x=kind, edge_index=edge_index, edge_attr=way, y=y, arrival=arrival)


class CircuitNet(nn.Module):
    def __init__(self, histogram):
        super().__init__()
        self.kind = nn.Embedding(kinds, hidden)
        self.way = nn.Embedding(2, hidden // 4)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(depth):
            self.convs.append(
                PNAConv(
                    hidden,
                    hidden,
                    aggregators=["mean", "min", "max", "std"],
                    scalers=["identity", "amplification", "attenuation"],
                    deg=histogram,
                    edge_dim=hidden // 4,
                    towers=4,
                    pre_layers=2,
                    post_layers=1,
                    divide_input=False,
                )
            )
            self.norms.append(BatchNorm(hidden))
        self.node_head = nn.Linear(hidden, 1)
        self.head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, data):
        x, e = self.kind(data.x), self.way(data.edge_attr)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x, data.edge_index, e)))
        pooled = torch.cat(
            [global_max_pool(x, data.batch), global_add_pool(x, data.batch) / 100], dim=1
        )
        return self.head(pooled).squeeze(1), self.node_head(x).squeeze(1)


g = torch.Generator().manual_seed(8)
graphs = [circuit(g) for _ in range(4 * batch_size)]
held_out = [circuit(g) for _ in range(batch_size)]
histogram = torch.zeros(64, dtype=torch.long)
for graph in graphs:
    d = degree(graph.edge_index[1], graph.num_nodes, dtype=torch.long).clamp(max=63)
    histogram += torch.bincount(d, minlength=64)

model = CircuitNet(histogram).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
loader = DataLoader(graphs, batch_size=batch_size, shuffle=True)
step = 0
for epoch in range(3):
    model.train()
    for batch in loader:
        batch = batch.to(device)
        delay, arrival = model(batch)
        loss = F.smooth_l1_loss(delay, batch.y) + 0.5 * F.mse_loss(arrival, batch.arrival)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} step {step} loss {loss.item():.6f}")
        step += 1
    model.eval()
    with torch.no_grad():
        batch = next(iter(DataLoader(held_out, batch_size=batch_size))).to(device)
        error = F.l1_loss(model(batch)[0], batch.y)
    plateau.step(error)
    print(f"epoch {epoch} held-out error {error.item():.6f}")
