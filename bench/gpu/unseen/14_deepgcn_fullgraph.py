# Full-batch deep residual GCN on one big (synthetic) citation graph.
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.use_deterministic_algorithms(True, warn_only=True)  # index_add_ on cuda


def build_graph(n_nodes, n_edges, n_feat, n_class, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, n_class, (n_nodes,), generator=g)
    src = torch.randint(0, n_nodes, (n_edges,), generator=g)
    # homophily: half of the edges stay inside the class
    order = torch.argsort(y, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(n_nodes)
    near = order[(rank[src] + torch.randint(1, 50, (n_edges,), generator=g)) % n_nodes]
    far = torch.randint(0, n_nodes, (n_edges,), generator=g)
    dst = torch.where(torch.rand(n_edges, generator=g) < 0.5, near, far)
    loop = torch.arange(n_nodes)
    row = torch.cat([src, dst, loop])
    col = torch.cat([dst, src, loop])
    centers = torch.randn(n_class, n_feat, generator=g)
    x = 0.5 * centers[y] + torch.randn(n_nodes, n_feat, generator=g)
    perm = torch.randperm(n_nodes, generator=g)
    train_idx, val_idx = perm[: n_nodes // 2], perm[n_nodes // 2 : n_nodes * 3 // 4]
    return x, y, row, col, train_idx, val_idx


def gcn_norm(row, col, n):
    deg = torch.zeros(n).index_add_(0, col, torch.ones(col.numel()))
    dinv = deg.clamp(min=1).pow(-0.5)
    return dinv[row] * dinv[col]


class GCNConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Linear(cin, cout, bias=False)
        self.bias = nn.Parameter(torch.zeros(cout))

    def forward(self, x, row, col, w):
        x = self.lin(x)
        out = torch.zeros_like(x)
        out = out.index_add(0, col, x[row] * w[:, None])
        return out + self.bias


class DeeperGCN(nn.Module):
    def __init__(self, cin, hidden, cout, layers, dropout):
        super().__init__()
        self.enc = nn.Linear(cin, hidden)
        self.convs = nn.ModuleList([GCNConv(hidden, hidden) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(layers)])
        self.dec = nn.Linear(hidden, cout)
        self.dropout = dropout

    def forward(self, x, row, col, w):
        h = self.enc(x)
        for conv, norm in zip(self.convs, self.norms):
            z = F.relu(norm(h))
            z = F.dropout(z, p=self.dropout, training=self.training)
            h = h + conv(z, row, col, w)
        return self.dec(F.relu(h))


def train(model, data, optimizer):
    x, y, row, col, w, train_idx, _ = data
    model.train()
    optimizer.zero_grad()
    out = model(x, row, col, w)[train_idx]
    loss = F.cross_entropy(out, y[train_idx])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test(model, data):
    x, y, row, col, w, _, val_idx = data
    model.eval()
    pred = model(x, row, col, w)[val_idx].argmax(-1)
    return (pred == y[val_idx]).float().mean().item()


def main():
    small = os.environ.get("SMALL") == "1"
    n, e, feat, hidden, layers, classes = (
        (300, 900, 16, 16, 3, 5) if small else (100_000, 250_000, 128, 256, 12, 40)
    )
    torch.manual_seed(12)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y, row, col, tr, va = build_graph(n, e, feat, classes, seed=12)
    w = gcn_norm(row, col, n)
    data = tuple(t.to(device) for t in (x, y, row, col, w, tr, va))
    model = DeeperGCN(feat, hidden, classes, layers, dropout=0.2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(1, 17):
        loss = train(model, data, optimizer)
        print(f"step {epoch} loss {loss:.6f}")
    print(f"val acc {test(model, data):.4f}")


if __name__ == "__main__":
    main()
