"""Graph classification with GATv2 layers from torch_geometric (edge features, mean readout)."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATv2Conv, global_mean_pool

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
big = device.type == "cuda"
GRAPHS = 360 if big else 4
NODES = (80, 160) if big else (6, 12)
DEGREE = 12 if big else 3
HIDDEN, HEADS, LAYERS = (32, 4, 4) if big else (4, 2, 2)
STEPS = 12 if big else 4


def random_graph(rng):
    n = int(torch.randint(*NODES, (1,), generator=rng))
    src = torch.randint(0, n, (n * DEGREE,), generator=rng)
    label = int(torch.randint(0, 2, (1,), generator=rng))
    if label:  # near neighbours on a ring, else anywhere
        hop = torch.randint(1, 5, (n * DEGREE,), generator=rng)
        dst = (src + hop) % n
    else:
        dst = torch.randint(0, n, (n * DEGREE,), generator=rng)
    x = torch.randn(n, 16, generator=rng)
    edge_attr = torch.randn(n * DEGREE, 8, generator=rng)
    return Data(x=x, edge_index=torch.stack([src, dst]), edge_attr=edge_attr, y=label)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        width = HIDDEN * HEADS
        self.lift = torch.nn.Linear(16, width)
        self.convs = torch.nn.ModuleList(
            GATv2Conv(width, HIDDEN, heads=HEADS, edge_dim=8) for _ in range(LAYERS)
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(LAYERS))
        self.head = torch.nn.Linear(width, 2)

    def forward(self, batch):
        x = self.lift(batch.x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.elu(conv(norm(x), batch.edge_index, batch.edge_attr))
        return self.head(global_mean_pool(x, batch.batch, batch.num_graphs))


torch.manual_seed(1111)
rng = torch.Generator().manual_seed(1111)
graphs = [random_graph(rng) for _ in range(GRAPHS * 3)]
model = Net().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)

for step in range(STEPS):
    order = torch.randperm(len(graphs), generator=rng)[:GRAPHS].tolist()
    batch = Batch.from_data_list([graphs[i] for i in order]).to(device)
    out = model(batch)
    loss = F.cross_entropy(out, batch.y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    plateau.step(loss.item())
    acc = (out.argmax(1) == batch.y).float().mean().item()
    print(f"step {step} edges {batch.num_edges} loss {loss.item():.6f} acc {acc:.3f}", flush=True)
