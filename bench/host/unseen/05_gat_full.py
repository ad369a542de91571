"""Graph attention over one whole graph: softmax over incoming edges by scatter."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)
NODES, EDGES, FEATURES, CLASSES = 9000, 70000, 64, 7


class GATLayer(nn.Module):
    def __init__(self, a, b, heads):
        super().__init__()
        self.heads, self.b = heads, b
        self.lin = nn.Linear(a, heads * b, bias=False)
        self.src = nn.Parameter(torch.randn(heads, b) * 0.1)
        self.dst = nn.Parameter(torch.randn(heads, b) * 0.1)

    def forward(self, x, edges):
        s, t = edges
        h = self.lin(x).view(-1, self.heads, self.b)
        e = F.leaky_relu((h * self.src).sum(-1)[s] + (h * self.dst).sum(-1)[t], 0.2)
        top = torch.full((x.size(0), self.heads), -1e9)
        top = top.scatter_reduce(0, t[:, None].expand_as(e), e.detach(), "amax")
        w = (e - top[t]).exp()
        total = torch.zeros(x.size(0), self.heads).index_add(0, t, w)
        w = w / (total[t] + 1e-9)
        out = torch.zeros(x.size(0), self.heads, self.b)
        return out.index_add(0, t, w[..., None] * h[s]).flatten(1)


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([GATLayer(FEATURES, 16, 4), GATLayer(64, 16, 4)])
        self.layers.append(GATLayer(64, 16, 4))
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x, edges):
        for layer in self.layers:
            x = F.elu(layer(x, edges))
        return self.out(x)


x = torch.randn(NODES, FEATURES)
edges = torch.randint(0, NODES, (2, EDGES))
edges = torch.cat([edges, torch.arange(NODES).repeat(2, 1)], 1)
y = torch.randint(0, CLASSES, (NODES,))
train = torch.rand(NODES) < 0.6
model = GAT()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
for epoch in range(6):
    model.train()
    optimizer.zero_grad()
    out = model(x, edges)
    loss = F.cross_entropy(out[train], y[train])
    loss.backward()
    optimizer.step()
    print("epoch %d loss %.8g" % (epoch, loss.item()), flush=True)
model.eval()
with torch.no_grad():
    accuracy = (model(x, edges).argmax(1) == y)[~train].double().mean().item()
print("accuracy %.6f" % accuracy)
