"""Click prediction: bags of sparse features with their own SparseAdam, dense features through a
network, all pairs of embeddings multiplied."""

# tiny: --rows 100 --dim 8 --batch 6 --tables 3 --device cpu
import argparse

import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--rows", type=int, default=100000)
p.add_argument("--dim", type=int, default=64)
p.add_argument("--batch", type=int, default=65536)
p.add_argument("--tables", type=int, default=16)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(8)


def mlp(*sizes):
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(a.rows, a.dim, mode="sum", sparse=True) for _ in range(a.tables)
        )
        self.bottom = mlp(13, 512, 256, a.dim)
        pairs = (a.tables + 1) * a.tables // 2
        self.top = nn.Sequential(mlp(a.dim + pairs, 1024, 1024, 512, 256), nn.Linear(256, 1))

    def forward(self, dense, bags, offsets):
        x = self.bottom(dense)
        t = torch.stack([x] + [e(b, offsets) for e, b in zip(self.tables, bags)], 1)
        z = torch.bmm(t, t.transpose(1, 2))
        i, j = torch.tril_indices(t.size(1), t.size(1), -1, device=t.device)
        return self.top(torch.cat([x, z[:, i, j]], 1)).squeeze(1)


net = DLRM().to(a.device)
sparse = torch.optim.SparseAdam(list(net.tables.parameters()), 1e-3)
dense_params = [*net.bottom.parameters(), *net.top.parameters()]
dense = torch.optim.Adagrad(dense_params, 1e-2)
g = torch.Generator().manual_seed(9)
bag = 4
offsets = (torch.arange(a.batch) * bag).to(a.device)
for step in range(12):
    x = torch.randn(a.batch, 13, generator=g).to(a.device)
    ids = torch.randint(0, a.rows, (a.tables, a.batch * bag), generator=g).to(a.device)
    y = torch.randint(0, 2, (a.batch,), generator=g).float().to(a.device)
    loss = nn.functional.binary_cross_entropy_with_logits(net(x, list(ids), offsets), y)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
