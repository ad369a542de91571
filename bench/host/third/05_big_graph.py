"""Attention over the edges of one big graph, written with index_add; half of the nodes labelled."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
torch.set_num_threads(1)
NODES, EDGES, CLASSES = 12_000, 90_000, 9


class EdgeAttention(nn.Module):
    def __init__(self, inside, out, heads):
        super().__init__()
        self.heads, self.out = heads, out
        self.lin = nn.Linear(inside, heads * out, bias=False)
        self.left = nn.Parameter(torch.randn(heads, out) * 0.1)
        self.right = nn.Parameter(torch.randn(heads, out) * 0.1)

    def forward(self, x, source, target):
        h = self.lin(x).view(-1, self.heads, self.out)
        score = (h * self.left).sum(-1)[source] + (h * self.right).sum(-1)[target]
        score = F.leaky_relu(score, 0.2)
        weight = (score - score.max()).exp()
        total = torch.zeros(len(x), self.heads).index_add(0, target, weight)
        message = h[source] * (weight / total[target].clamp_min(1e-12))[..., None]
        return torch.zeros_like(h).index_add(0, target, message).flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = EdgeAttention(64, 24, 6)
        self.b = EdgeAttention(144, 24, 6)
        self.c = EdgeAttention(144, CLASSES, 1)

    def forward(self, x, source, target):
        x = F.elu(self.a(x, source, target))
        x = F.elu(self.b(x, source, target) + x)
        return self.c(x, source, target)


x = torch.randn(NODES, 64)
source, target = torch.randint(0, NODES, (2, EDGES))
y = torch.randint(0, CLASSES, (NODES,))
known = torch.rand(NODES) < 0.5
net = Net()
opt = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)
for epoch in range(5):
    out = net(x, source, target)
    loss = F.nll_loss(F.log_softmax(out[known], -1), y[known])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("epoch %d train_loss %.8g" % (epoch, loss.item()), flush=True)
