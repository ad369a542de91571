# Node classification on the whole graph: mean aggregation by a sparse matrix, a training mask, no
# batches at all.
# tiny: --nodes 60 --hidden 8 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--nodes", type=int, default=300000)
ap.add_argument("--hidden", type=int, default=256)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(0)
rng = torch.Generator().manual_seed(0)
edges = torch.randint(0, a.nodes, (2, 6 * a.nodes), generator=rng)
adj = torch.sparse_coo_tensor(edges, torch.ones(edges.size(1)), (a.nodes, a.nodes)).coalesce()
deg = torch.sparse.sum(adj, 1).to_dense().clamp(min=1)[:, None].to(a.device)
adj = adj.to(a.device)
x = torch.randn(a.nodes, 64, generator=rng).to(a.device)
y = torch.randint(0, 10, (a.nodes,), generator=rng).to(a.device)
train = (torch.rand(a.nodes, generator=rng) < 0.5).to(a.device)


class Sage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.self_, self.neigh, self.norm = nn.Linear(i, o), nn.Linear(i, o), nn.LayerNorm(o)

    def forward(self, h, adj, deg):
        return F.relu(self.norm(self.self_(h) + self.neigh(torch.sparse.mm(adj, h) / deg)))


class Net(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.layers = nn.ModuleList([Sage(64, w)] + [Sage(w, w) for _ in range(5)])
        self.out = nn.Linear(w, 10)

    def forward(self, h, adj, deg):
        for layer in self.layers:
            h = layer(h, adj, deg)
        return self.out(h)


net = Net(a.hidden).to(a.device)
opt = torch.optim.Adam(net.parameters(), lr=0.003, weight_decay=5e-4)
for epoch in range(14):
    net.train()
    opt.zero_grad()
    out = net(x, adj, deg)
    loss = F.nll_loss(F.log_softmax(out[train], 1), y[train])
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (epoch, loss.item()), flush=True)
net.eval()
with torch.no_grad():
    right = (net(x, adj, deg).argmax(1) == y)[~train].float().mean()
print("accuracy %.3f" % right.item())
