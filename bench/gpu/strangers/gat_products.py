"""Graph attention over one large graph: no batch, index operations, a mask for the training
nodes.
"""

# tiny: --nodes 300 --degree 4 --hidden 16 --layers 2
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int, default=120000)
parser.add_argument("--degree", type=int, default=12)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--classes", type=int, default=47)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=1e-3)
args = parser.parse_args()


class GATLayer(nn.Module):
    def __init__(self, d_in, d_out, heads):
        super().__init__()
        self.heads, self.d = heads, d_out // heads
        self.lin = nn.Linear(d_in, d_out, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, self.d))
        self.att_dst = nn.Parameter(torch.empty(1, heads, self.d))
        self.bias = nn.Parameter(torch.zeros(d_out))
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x, edge_index):
        src, dst = edge_index
        h = self.lin(x).view(-1, self.heads, self.d)
        a = (h * self.att_src).sum(-1)[src] + (h * self.att_dst).sum(-1)[dst]
        a = F.leaky_relu(a, 0.2).exp()
        norm = torch.zeros(x.size(0), self.heads, device=x.device).index_add(0, dst, a)
        a = a / (norm[dst] + 1e-16)
        out = torch.zeros_like(h).index_add(0, dst, h[src] * a.unsqueeze(-1))
        return out.flatten(1) + self.bias


class GAT(nn.Module):
    def __init__(self, d_in, hidden, classes, heads, layers):
        super().__init__()
        self.convs = nn.ModuleList(
            [GATLayer(d_in if i == 0 else hidden, hidden, heads) for i in range(layers)]
        )
        self.skips = nn.ModuleList(
            [nn.Linear(d_in if i == 0 else hidden, hidden) for i in range(layers)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(layers)])
        self.head = nn.Linear(hidden, classes)

    def forward(self, x, edge_index):
        for conv, skip, norm in zip(self.convs, self.skips, self.norms):
            x = F.elu(norm(conv(x, edge_index) + skip(x)))
        return self.head(x)


torch.manual_seed(12)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(args.nodes, 100).to(device)
y = torch.randint(0, args.classes, (args.nodes,)).to(device)
edge_index = torch.randint(0, args.nodes, (2, args.nodes * args.degree)).to(device)
train_mask = (torch.rand(args.nodes) < 0.6).to(device)

model = GAT(100, args.hidden, args.classes, args.heads, args.layers).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index)
    loss = F.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    pred = model(x, edge_index).argmax(-1)
    return (pred[~train_mask] == y[~train_mask]).float().mean().item()


for epoch in range(args.epochs):
    loss = train()
    print("step %d loss %.6f" % (epoch, loss), flush=True)
    if epoch % 10 == 9:
        print("epoch %d test acc %.3f" % (epoch, test()))
