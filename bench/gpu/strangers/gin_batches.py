"""Many small graphs in a batch, by torch_geometric: GIN layers, pooled sums, a loader that joins
graphs; every batch has another number of nodes and edges."""

# tiny: --hidden 8 --batch 6 --device cpu
import argparse

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

p = argparse.ArgumentParser()
p.add_argument("--hidden", type=int, default=384)
p.add_argument("--batch", type=int, default=1024)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(1)
g = torch.Generator().manual_seed(2)


def graph():
    n = int(torch.randint(20, 60, (1,), generator=g))
    edges = torch.randint(0, n, (2, 3 * n), generator=g)
    x = torch.randn(n, 16, generator=g)
    return Data(x=x, edge_index=edges, y=torch.randint(0, 4, (1,), generator=g))


class GIN(nn.Module):
    def __init__(self, h, depth=5):
        super().__init__()
        self.convs = nn.ModuleList()
        for i in range(depth):
            inner = nn.Sequential(
                nn.Linear(16 if i == 0 else h, h), nn.LayerNorm(h), nn.ReLU(), nn.Linear(h, h)
            )
            self.convs.append(GINConv(inner, train_eps=True))
        self.head = nn.Linear(h * depth, 4)

    def forward(self, x, edge_index, batch):
        pooled = []
        for conv in self.convs:
            x = torch.relu(conv(x, edge_index))
            pooled.append(global_add_pool(x, batch))
        return self.head(torch.cat(pooled, 1))


loader = DataLoader([graph() for _ in range(8 * a.batch)], batch_size=a.batch)
model = GIN(a.hidden).to(a.device)
opt = torch.optim.Adam(model.parameters(), 1e-4)
for step, data in enumerate(loader):
    data = data.to(a.device)
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
