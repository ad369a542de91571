"""MeshGraphNets on a synthetic flow mesh: encode-process-decode, training noise, normalisers."""

import torch
import torch.nn as nn

CUDA = torch.cuda.is_available()


def mlp(cin, hidden, cout, norm=True):
    layers = [
        nn.Linear(cin, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, cout),
    ]
    return nn.Sequential(*layers, nn.LayerNorm(cout)) if norm else nn.Sequential(*layers)


class Normalizer(nn.Module):
    """Running mean and deviation, accumulated during the first batches."""

    def __init__(self, size, limit=100):
        super().__init__()
        self.limit = limit
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("total", torch.zeros(size))
        self.register_buffer("square", torch.zeros(size))

    def forward(self, x, accumulate=True):
        if accumulate and self.training and self.seen < self.limit:
            flat = x.detach().reshape(-1, x.size(-1))
            self.total += flat.sum(0)
            self.square += flat.square().sum(0)
            self.count += flat.size(0)
            self.seen += 1
        return (x - self.mean()) / self.std()

    def mean(self):
        return self.total / self.count.clamp(min=1)

    def std(self):
        var = self.square / self.count.clamp(min=1) - self.mean().square()
        return var.clamp(min=1e-8).sqrt()


class GraphNetBlock(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.edge_mlp = mlp(3 * h, h, h)
        self.node_mlp = mlp(2 * h, h, h)

    def forward(self, v, e, send, recv):
        new_e = self.edge_mlp(torch.cat([v[:, send], v[:, recv], e], -1))
        agg = torch.zeros_like(v).index_add(1, recv, new_e)
        new_v = self.node_mlp(torch.cat([v, agg], -1))
        return v + new_v, e + new_e


class Simulator(nn.Module):
    def __init__(self, h, steps):
        super().__init__()
        self.node_norm, self.edge_norm = Normalizer(2), Normalizer(3)
        self.out_norm = Normalizer(2)
        self.enc_v, self.enc_e = mlp(2 + 4, h, h), mlp(3, h, h)
        self.blocks = nn.ModuleList(GraphNetBlock(h) for _ in range(steps))
        self.dec = mlp(h, h, 2, norm=False)

    def forward(self, vel, kind, edge_feat, send, recv):
        v = self.enc_v(torch.cat([self.node_norm(vel), kind], -1))
        e = self.enc_e(self.edge_norm(edge_feat))
        for block in self.blocks:
            v, e = block(v, e, send, recv)
        return self.dec(v)


def make_mesh(side, g):
    """Jittered grid with diagonals; returns positions, one-hot kinds and directed edges."""
    idx = torch.arange(side * side).view(side, side)
    pos = torch.stack(
        torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij"), -1
    ).view(-1, 2)
    pos = pos + 0.2 / side * torch.randn(pos.shape, generator=g)
    pairs = [(idx[:-1], idx[1:]), (idx[:, :-1], idx[:, 1:]), (idx[:-1, :-1], idx[1:, 1:])]
    a = torch.cat([p.flatten() for p, _ in pairs])
    b = torch.cat([q.flatten() for _, q in pairs])
    kind = torch.zeros(side, side, dtype=torch.long)
    kind[0], kind[-1] = 1, 2
    kind[:, 0] = 3
    onehot = nn.functional.one_hot(kind.flatten(), 4).float()
    return pos, onehot, torch.cat([a, b]), torch.cat([b, a])


def trajectories(pos, batch, g):
    while True:
        w = 3 + 6 * torch.rand(batch, 1, 2, generator=g)
        ph = 6.28 * torch.rand(batch, 1, 2, generator=g)
        now = torch.sin(w * pos + ph)
        nxt = torch.sin(w * pos + ph + 0.2) + 0.02 * torch.randn(now.shape, generator=g)
        noise = 0.02 * torch.randn(now.shape, generator=g)
        yield now + noise, nxt


def main():
    side, batch, hidden, mp, iters = (56, 4, 128, 12, 12) if CUDA else (6, 2, 16, 2, 4)
    device = torch.device("cuda" if CUDA else "cpu")
    torch.manual_seed(70)
    g = torch.Generator().manual_seed(70)
    pos, kind, send, recv = make_mesh(side, g)
    rel = pos[send] - pos[recv]
    edge = torch.cat([rel, rel.norm(dim=-1, keepdim=True)], -1)
    data = trajectories(pos, batch, g)
    kind = kind.expand(batch, -1, -1).to(device)
    edge = edge.expand(batch, -1, -1).to(device)
    send, recv = send.to(device), recv.to(device)
    interior = kind[..., 0] == 1

    sim = Simulator(hidden, mp).to(device).train()
    optim = torch.optim.Adam(sim.parameters(), lr=3e-4)
    sched = torch.optim.lr_scheduler.ExponentialLR(optim, gamma=0.95)
    for it in range(iters):
        vel, target = (t.to(device) for t in next(data))
        pred = sim(vel, kind, edge, send, recv)
        goal = sim.out_norm(target - vel)
        err = (pred - goal).square().sum(-1)
        loss = err[interior].mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        sched.step()
        print(f"it {it} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
