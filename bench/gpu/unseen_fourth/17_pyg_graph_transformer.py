"""Graph transformer (TransformerConv with edge features) with random-walk encodings: a node task
and a graph task over mini-batches of torch_geometric."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.loader import DataLoader  # noqa: E402
from torch_geometric.nn import GraphNorm, TransformerConv, global_mean_pool  # noqa: E402

SMALL = os.environ.get("SMALL") == "1"
PER_BATCH, BATCHES, HIDDEN, LAYERS = (4, 4, 16, 2) if SMALL else (150, 6, 256, 7)
WALK, NODE_CLASSES = 8, 6


def random_graph(g):
    n = int(torch.randint(60, 140, (1,), generator=g))
    pos = torch.rand(n, 2, generator=g)
    d = (pos[:, None] - pos[None]).norm(dim=-1)
    d.fill_diagonal_(9.0)
    near = d.topk(6, largest=False).indices
    adj = torch.zeros(n, n)
    adj[torch.arange(n).repeat_interleave(6), near.flatten()] = 1
    adj = ((adj + adj.t()) > 0).float()
    walk, p, rw = adj / adj.sum(1, keepdim=True), torch.eye(n), []
    for _ in range(WALK):
        p = p @ walk
        rw.append(p.diagonal())
    edge_index = adj.nonzero().t().contiguous()
    rel = pos[edge_index[1]] - pos[edge_index[0]]
    colour = torch.randint(0, 10, (n,), generator=g)
    degree = adj.sum(1).long()
    return Data(
        x=colour,
        rw=torch.stack(rw, 1),
        edge_index=edge_index,
        edge_attr=torch.cat([rel, rel.norm(dim=1, keepdim=True)], 1),
        y=((colour + degree) % NODE_CLASSES),
        target=(colour.float().mean() - 4.5).view(1),
        num_nodes=n,
    )


class GraphTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.colour, self.rw = nn.Embedding(10, HIDDEN), nn.Linear(WALK, HIDDEN)
        self.edge = nn.Sequential(nn.Linear(3, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN))
        self.convs, self.norms, self.ffs = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for _ in range(LAYERS):
            self.convs.append(
                TransformerConv(
                    HIDDEN, HIDDEN // 4, heads=4, edge_dim=HIDDEN, dropout=0.1, beta=True
                )
            )
            self.norms.append(GraphNorm(HIDDEN))
            self.ffs.append(
                nn.Sequential(
                    nn.LayerNorm(HIDDEN),
                    nn.Linear(HIDDEN, 4 * HIDDEN),
                    nn.GELU(),
                    nn.Linear(4 * HIDDEN, HIDDEN),
                )
            )
        self.node_out = nn.Linear(HIDDEN, NODE_CLASSES)
        self.graph_out = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))

    def forward(self, data):
        x = self.colour(data.x) + self.rw(data.rw)
        e = self.edge(data.edge_attr)
        for conv, norm, ff in zip(self.convs, self.norms, self.ffs):
            x = x + norm(conv(x, data.edge_index, e), data.batch)
            x = x + ff(x)
        return self.node_out(x), self.graph_out(global_mean_pool(x, data.batch)).squeeze(-1)


def main():
    torch.manual_seed(30)
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    g = torch.Generator().manual_seed(31)
    graphs = [random_graph(g) for _ in range(PER_BATCH * BATCHES)]
    loader = DataLoader(graphs, batch_size=PER_BATCH, shuffle=True)
    model = GraphTransformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-5)
    step = 0
    for epoch in range(2):
        model.train()
        for data in loader:
            data = data.to(device)
            node, graph = model(data)
            loss_node = F.cross_entropy(node, data.y)
            loss_graph = F.huber_loss(graph, data.target)
            loss = loss_node + 0.5 * loss_graph
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f}", flush=True)
            step += 1
        print(f"epoch {epoch} done")


if __name__ == "__main__":
    main()
