"""Equivariant message passing (PaiNN) on batched molecules: energies and dipole moments."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter


def random_molecule(seed, low, high, cutoff):
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(low, high, (1,), generator=g))
    z = torch.randint(1, 9, (n,), generator=g)
    pos = torch.randn(n, 3, generator=g) * 0.8 * n ** (1 / 3)
    dist = torch.cdist(pos, pos)
    src, dst = ((dist < cutoff) & (dist > 0)).nonzero().t()
    charge = (z.float() - 4.5) / 8
    charge = charge - charge.mean()
    pair = torch.exp(-dist) * charge[:, None] * charge[None]
    energy = pair.sum() - pair.diagonal().sum()
    dipole = (charge[:, None] * pos).sum(0, keepdim=True)
    edges = torch.stack([src, dst])
    return Data(z=z, pos=pos, edge_index=edges, energy=energy.view(1), dipole=dipole, num_nodes=n)


class Message(MessagePassing):
    def __init__(self, dim, n_rbf, cutoff):
        super().__init__(aggr="add", node_dim=0)
        self.dim, self.cutoff = dim, cutoff
        self.phi = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 3 * dim))
        self.filter = nn.Linear(n_rbf, 3 * dim)
        self.register_buffer("freq", math.pi / cutoff * torch.arange(1, n_rbf + 1))

    def forward(self, s, v, edge_index, dist, unit):
        rbf = torch.sin(dist[:, None] * self.freq) / dist[:, None]
        envelope = 0.5 * (torch.cos(math.pi * dist / self.cutoff) + 1)
        w = self.filter(rbf) * envelope[:, None]
        out = self.propagate(
            edge_index, phi=self.phi(s), v=v.flatten(1), w=w, unit=unit, size=(len(s), len(s))
        )
        ds, dv = out.split([self.dim, 3 * self.dim], dim=1)
        return s + ds, v + dv.view(-1, 3, self.dim)

    def message(self, phi_j, v_j, w, unit):
        ds, gate_v, gate_r = (phi_j * w).split(self.dim, dim=1)
        v_j = v_j.view(-1, 3, self.dim)
        dv = v_j * gate_v[:, None] + unit[:, :, None] * gate_r[:, None]
        return torch.cat([ds, dv.flatten(1)], dim=1)


class Update(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.u, self.w = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.net = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, 3 * dim))

    def forward(self, s, v):
        uv, wv = self.u(v), self.w(v)
        norm = (wv.pow(2).sum(1) + 1e-8).sqrt()
        a, b, c = self.net(torch.cat([s, norm], 1)).chunk(3, 1)
        return s + a + b * (uv * wv).sum(1), v + c[:, None] * uv


class PaiNN(nn.Module):
    def __init__(self, dim, layers, n_rbf, cutoff):
        super().__init__()
        self.embed = nn.Embedding(10, dim)
        self.messages = nn.ModuleList(Message(dim, n_rbf, cutoff) for _ in range(layers))
        self.updates = nn.ModuleList(Update(dim) for _ in range(layers))
        self.energy = nn.Sequential(nn.Linear(dim, dim // 2), nn.SiLU(), nn.Linear(dim // 2, 1))
        self.charge = nn.Sequential(nn.Linear(dim, dim // 2), nn.SiLU(), nn.Linear(dim // 2, 1))
        self.mu = nn.Linear(dim, 1, bias=False)

    def forward(self, batch):
        src, dst = batch.edge_index
        vec = batch.pos[dst] - batch.pos[src]
        dist = vec.norm(dim=1)
        unit = vec / dist[:, None]
        s = self.embed(batch.z)
        v = s.new_zeros(len(s), 3, s.shape[1])
        for message, update in zip(self.messages, self.updates, strict=True):
            s, v = message(s, v, batch.edge_index, dist, unit)
            s, v = update(s, v)
        energy = scatter(self.energy(s).squeeze(1), batch.batch, 0, reduce="sum")
        dipole = self.mu(v).squeeze(-1) + self.charge(s) * batch.pos
        return energy, scatter(dipole, batch.batch, 0, reduce="sum")


def main():
    cuda = torch.cuda.is_available()
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=128 if cuda else 16)
    p.add_argument("--layers", type=int, default=4 if cuda else 2)
    p.add_argument("--batch-size", type=int, default=256 if cuda else 4)
    p.add_argument("--atoms", type=int, nargs=2, default=(20, 40) if cuda else (4, 9))
    p.add_argument("--cutoff", type=float, default=6.0)
    p.add_argument("--steps", type=int, default=12 if cuda else 8)
    args = p.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if cuda else "cpu")

    total = args.batch_size * args.steps
    mols = [random_molecule(i, *args.atoms, args.cutoff) for i in range(total)]
    mean = torch.cat([m.energy for m in mols]).mean()
    std = torch.cat([m.energy for m in mols]).std()
    loader = DataLoader(mols, args.batch_size, shuffle=True)
    held = [random_molecule(10**6 + i, *args.atoms, args.cutoff) for i in range(args.batch_size)]

    model = PaiNN(args.dim, args.layers, 20, args.cutoff).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, amsgrad=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    for step, batch in enumerate(loader):
        batch = batch.to(device)
        energy, dipole = model(batch)
        e_loss = F.mse_loss(energy, (batch.energy - mean) / std)
        d_loss = F.mse_loss(dipole, batch.dipole)
        loss = e_loss + 0.1 * d_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        plateau.step(loss.item())
        print(f"step {step} loss {loss.item():.6f} edges {batch.num_edges}", flush=True)

    model.eval()
    with torch.no_grad():
        for batch in DataLoader(held, args.batch_size // 2):
            batch = batch.to(device)
            energy, _ = model(batch)
            mae = (energy * std + mean - batch.energy).abs().mean()
            print(f"held-out energy mae {mae.item():.5f}")


if __name__ == "__main__":
    main()
