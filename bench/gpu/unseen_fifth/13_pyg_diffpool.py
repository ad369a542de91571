"""Graph classification with DiffPool on dense torch_geometric layers; link + entropy losses."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DenseDataLoader
from torch_geometric.nn import DenseSAGEConv, dense_diff_pool
from torch_geometric.transforms import ToDense

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
NODES, PER_BATCH, BATCHES, WIDTH = (20, 3, 4, 16) if SMALL else (224, 256, 5, 256)
CLASSES, FEATURES, EPOCHS = 6, 16, 2


def community_graph(g):
    """The label is the number of communities."""
    y = int(torch.randint(0, CLASSES, (1,), generator=g))
    n = int(torch.randint(NODES // 2, NODES + 1, (1,), generator=g))
    member = torch.randint(0, y + 2, (n,), generator=g)
    p = torch.where(member[:, None] == member[None], 0.15, 0.01)
    adj = torch.triu(torch.rand(n, n, generator=g) < p, 1)
    edge_index = (adj | adj.t()).nonzero().t().contiguous()
    x = torch.randn(n, FEATURES, generator=g)
    return ToDense(NODES)(Data(x=x, edge_index=edge_index, y=torch.tensor([y])))


class SAGEStack(nn.Module):
    def __init__(self, i, h, o):
        super().__init__()
        self.convs = nn.ModuleList([DenseSAGEConv(i, h), DenseSAGEConv(h, h), DenseSAGEConv(h, o)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(h), nn.BatchNorm1d(h), nn.BatchNorm1d(o)])
        self.lin = nn.Linear(2 * h + o, o)

    def forward(self, x, adj, mask=None):
        outs = []
        for conv, norm in zip(self.convs, self.norms):
            x = conv(x, adj, mask).relu()
            b, n, c = x.shape
            x = norm(x.reshape(-1, c)).view(b, n, c)
            outs.append(x)
        return self.lin(torch.cat(outs, -1)).relu()


class DiffPool(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [NODES // 2, NODES // 6]
        self.embed = nn.ModuleList(
            [
                SAGEStack(FEATURES, WIDTH, WIDTH),
                SAGEStack(WIDTH, WIDTH, WIDTH),
                SAGEStack(WIDTH, WIDTH, WIDTH),
            ]
        )
        self.pool = nn.ModuleList(
            [SAGEStack(FEATURES, WIDTH, sizes[0]), SAGEStack(WIDTH, WIDTH, sizes[1])]
        )
        self.head = nn.Sequential(nn.Linear(3 * WIDTH, WIDTH), nn.ELU(), nn.Linear(WIDTH, CLASSES))

    def forward(self, x, adj, mask):
        side, reads = 0.0, []
        for embed, pool in zip(self.embed, self.pool):
            s, h = pool(x, adj, mask), embed(x, adj, mask)
            reads.append(h.amax(1))
            x, adj, link, entropy = dense_diff_pool(h, adj, s, mask)
            side, mask = side + link + 0.1 * entropy, None
        reads.append(self.embed[-1](x, adj).mean(1))
        return self.head(torch.cat(reads, 1)), side


if __name__ == "__main__":
    torch.manual_seed(13)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    g = torch.Generator().manual_seed(130)
    graphs = [community_graph(g) for _ in range(PER_BATCH * BATCHES)]
    loader = DenseDataLoader(graphs, batch_size=PER_BATCH, shuffle=True)
    model = DiffPool().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    step = 0
    for epoch in range(EPOCHS):
        seen = 0.0
        for data in loader:
            data = data.to(device)
            logits, side = model(data.x, data.adj, data.mask)
            loss = F.cross_entropy(logits, data.y.view(-1)) + side
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            seen += loss.item()
            print(f"step {step} loss {loss.item():.8f}", flush=True)
            step += 1
        plateau.step(seen / len(loader))
