"""Indoor point-cloud semantic segmentation with vector self-attention (Point Transformer)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

CUDA = torch.cuda.is_available()

conf = dict(
    points=4096 if CUDA else 64,
    batch=6 if CUDA else 2,
    k=16 if CUDA else 4,
    dims=(64, 128, 256) if CUDA else (8, 16),
    classes=13,
    iters=10 if CUDA else 3,
    lr=1e-3,
)


def gather(x, idx):
    """x (B,N,C), idx (B,M,k) -> (B,M,k,C)"""
    b = torch.arange(x.size(0), device=x.device).view(-1, 1, 1)
    return x[b, idx]


def knn(query, ref, k):
    with torch.no_grad():
        d = torch.cdist(query, ref, compute_mode="donot_use_mm_for_euclid_dist")
        return d.topk(k, dim=-1, largest=False).indices


class VectorAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.pre = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, c))
        self.to_q, self.to_k, self.to_v = (nn.Linear(c, c, bias=False) for _ in range(3))
        self.pos = nn.Sequential(nn.Linear(3, c), nn.ReLU(), nn.Linear(c, c))
        self.weight = nn.Sequential(
            nn.LayerNorm(c), nn.ReLU(), nn.Linear(c, c // 4), nn.ReLU(), nn.Linear(c // 4, c)
        )
        self.post = nn.Linear(c, c)

    def forward(self, p, x, idx):
        h = self.pre(x)
        rel = self.pos(p.unsqueeze(2) - gather(p, idx))
        diff = self.to_q(h).unsqueeze(2) - gather(self.to_k(h), idx) + rel
        att = self.weight(diff).softmax(dim=2)
        val = gather(self.to_v(h), idx) + rel
        return x + self.post((att * val).sum(2))


class Down(nn.Module):
    def __init__(self, cin, cout, k):
        super().__init__()
        self.k = k
        self.lin = nn.Sequential(nn.Linear(cin + 3, cout), nn.LayerNorm(cout), nn.ReLU())

    def forward(self, p, x):
        q = p[:, ::4].contiguous()
        idx = knn(q, p, self.k)
        grouped = torch.cat([gather(p, idx) - q.unsqueeze(2), gather(x, idx)], -1)
        return q, self.lin(grouped).amax(2)


class Up(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.a, self.b = nn.Linear(cin, cout), nn.Linear(cout, cout)

    def forward(self, p_fine, x_fine, p_coarse, x_coarse):
        idx = knn(p_fine, p_coarse, 3)
        d = (p_fine.unsqueeze(2) - gather(p_coarse, idx)).norm(dim=-1)
        w = 1 / (d + 1e-2)
        w = (w / w.sum(-1, keepdim=True)).unsqueeze(-1)
        return F.relu(self.b(x_fine) + (gather(self.a(x_coarse), idx) * w).sum(2))


class PointTransformer(nn.Module):
    def __init__(self, dims, k, classes):
        super().__init__()
        self.k = k
        self.stem = nn.Linear(6, dims[0])
        self.enc = nn.ModuleList(VectorAttention(c) for c in dims)
        self.down = nn.ModuleList(Down(a, b, k) for a, b in zip(dims[:-1], dims[1:]))
        self.up = nn.ModuleList(Up(b, a) for a, b in zip(dims[:-1], dims[1:]))
        self.dec = nn.ModuleList(VectorAttention(c) for c in dims[:-1])
        self.head = nn.Sequential(
            nn.Linear(dims[0], dims[0]), nn.ReLU(), nn.Linear(dims[0], classes)
        )

    def forward(self, pts):
        p, x = pts[..., :3].contiguous(), self.stem(pts)
        saved = []
        for i, enc in enumerate(self.enc):
            idx = knn(p, p, self.k)
            x = enc(p, x, idx)
            saved.append((p, x, idx))
            if i < len(self.down):
                p, x = self.down[i](p, x)
        for i in reversed(range(len(self.up))):
            fine_p, fine_x, idx = saved[i]
            x = self.dec[i](fine_p, self.up[i](fine_p, fine_x, p, x), idx)
            p = fine_p
        return self.head(x)


class Rooms(IterableDataset):
    def __init__(self, c, count, seed):
        self.c, self.count, self.seed = c, count, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count * self.c["batch"]):
            xyz = torch.rand(self.c["points"], 3, generator=g)
            lab = (xyz[:, 2] * 6).long() + 6 * (xyz[:, 0] > 0.5).long()
            rgb = lab[:, None] / 13 + 0.3 * torch.randn(self.c["points"], 3, generator=g)
            yield torch.cat([xyz, rgb], 1), lab


def main(c):
    torch.manual_seed(55)
    device = torch.device("cuda" if CUDA else "cpu")
    net = PointTransformer(c["dims"], c["k"], c["classes"]).to(device)
    freq = torch.linspace(0.8, 1.2, c["classes"], device=device)
    optim = torch.optim.AdamW(net.parameters(), lr=c["lr"], weight_decay=0.05)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optim, T_0=5)
    net.train()
    for it, (pts, lab) in enumerate(DataLoader(Rooms(c, c["iters"], 0), c["batch"])):
        logits = net(pts.to(device))
        loss = F.cross_entropy(logits.transpose(1, 2), lab.to(device), weight=freq)
        optim.zero_grad()
        loss.backward()
        optim.step()
        sched.step()
        print(f"iter {it} loss {loss.item():.8f}", flush=True)
    net.eval()
    with torch.inference_mode():
        for pts, lab in DataLoader(Rooms(c, 1, 1), c["batch"]):
            right = net(pts.to(device)).argmax(-1).cpu() == lab
            print(f"overall accuracy {right.float().mean().item():.4f}")


main(conf)
