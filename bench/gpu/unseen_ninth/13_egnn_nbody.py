"""Predict particle positions of a charged n-body system with an E(n)-equivariant network."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

torch.manual_seed(77)
device = "cuda" if torch.cuda.is_available() else "cpu"

BATCH, NODES, HIDDEN, LAYERS, STEPS = 64, 50, 128, 5, 12
if device == "cpu":
    BATCH, NODES, HIDDEN, LAYERS, STEPS = 4, 6, 16, 2, 10


class Systems(NamedTuple):
    pos: Tensor
    vel: Tensor
    charge: Tensor
    target: Tensor


def complete_edges(batch, nodes):
    i, j = torch.meshgrid(torch.arange(nodes), torch.arange(nodes), indexing="ij")
    keep = i != j
    row, col = i[keep], j[keep]
    offset = torch.arange(batch)[:, None] * nodes
    return (row + offset).reshape(-1).to(device), (col + offset).reshape(-1).to(device)


@torch.no_grad()
def simulate(n_steps=50, dt=0.02):
    pos = torch.randn(BATCH, NODES, 3, device=device) * 2
    vel = torch.randn(BATCH, NODES, 3, device=device) * 0.5
    charge = torch.randint(0, 2, (BATCH, NODES, 1), device=device) * 2.0 - 1.0
    pairs = charge @ charge.transpose(1, 2)
    x, v = pos.clone(), vel.clone()
    for _ in range(n_steps):
        diff = x[:, :, None] - x[:, None]
        inv = (diff.square().sum(-1) + 0.1).rsqrt() ** 3
        v = v + dt * ((pairs * inv)[..., None] * diff).sum(2).clamp(-5, 5)
        x = x + dt * v
    return Systems(*(t.flatten(0, 1) for t in (pos, vel, charge, x)))


def segment_sum(values, index, size):
    return values.new_zeros(size, values.shape[1]).index_add_(0, index, values)


class EGCL(nn.Module):
    """Equivariant graph convolution with a velocity input."""

    def __init__(self, dim):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * dim + 2, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.act = nn.SiLU()
        self.gate = nn.Sequential(nn.Linear(dim, 1), nn.Sigmoid())
        self.node = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        last = nn.Linear(dim, 1, bias=False)
        nn.init.xavier_uniform_(last.weight, gain=1e-3)
        self.coord = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), last)
        self.vel = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, h, x, v, edges, edge_attr):
        row, col = edges
        diff = x[row] - x[col]
        dist = diff.square().sum(-1, keepdim=True)
        m = self.act(self.edge(torch.cat([h[row], h[col], dist, edge_attr], dim=-1)))
        m = m * self.gate(m)
        move = diff / (dist.sqrt() + 1.0) * self.coord(m)
        x = x + segment_sum(move, row, len(x)) / (NODES - 1) + self.vel(h) * v
        agg = segment_sum(m, row, len(h))
        return h + self.node(torch.cat([h, agg], dim=-1)), x


class EGNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(2, HIDDEN)
        self.layers = nn.ModuleList(EGCL(HIDDEN) for _ in range(LAYERS))

    def forward(self, s, edges):
        speed = s.vel.norm(dim=-1, keepdim=True)
        h, x = self.embed(torch.cat([speed, s.charge], dim=-1)), s.pos
        row, col = edges
        edge_attr = s.charge[row] * s.charge[col]
        for layer in self.layers:
            h, x = layer(h, x, s.vel, edges, edge_attr)
        return x


@torch.no_grad()
def equivariance_error(model, systems, edges):
    q, _ = torch.linalg.qr(torch.randn(3, 3, device=device))
    turned = systems._replace(pos=systems.pos @ q, vel=systems.vel @ q)
    return (model(systems, edges) @ q - model(turned, edges)).abs().max().item()


edges = complete_edges(BATCH, NODES)
model = EGNN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-12)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for step in range(STEPS):
    model.train()
    systems = simulate()
    loss = nn.functional.mse_loss(model(systems, edges), systems.target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    if step == STEPS // 2:
        model.eval()
        print(f"  equivariance error {equivariance_error(model, systems, edges):.1e}")
