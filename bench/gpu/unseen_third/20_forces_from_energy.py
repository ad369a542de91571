"""A neural potential for atoms: energy from continuous-filter convolutions on all pairs, forces as
its derivative with create_graph, so that the force loss is differentiated twice."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
MOLECULES, ATOMS, HIDDEN, LAYERS, RBF = (2, 5, 16, 2, 8) if SMALL else (64, 48, 192, 3, 48)


def shifted_softplus(x):
    return F.softplus(x) - 0.6931471805599453


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.ModuleList([nn.Linear(RBF, HIDDEN), nn.Linear(HIDDEN, HIDDEN)])
        self.inp = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.mid, self.out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, rbf, cutoff):
        w = self.filter[1](shifted_softplus(self.filter[0](rbf))) * cutoff.unsqueeze(-1)
        h = (w * self.inp(x).unsqueeze(1)).sum(2)
        return x + self.out(shifted_softplus(self.mid(h)))


class Potential(nn.Module):
    def __init__(self, r_max=6.0):
        super().__init__()
        self.embed = nn.Embedding(10, HIDDEN)
        self.layers = nn.ModuleList(Interaction() for _ in range(LAYERS))
        self.head = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN // 2), nn.Linear(HIDDEN // 2, 1)])
        self.register_buffer("centres", torch.linspace(0.5, r_max, RBF))
        self.r_max = r_max

    def forward(self, z, r):
        diff = r.unsqueeze(2) - r.unsqueeze(1)
        eye = torch.eye(r.size(1), device=r.device)
        d = (diff.pow(2).sum(-1) + eye).sqrt()
        rbf = torch.exp(-4.0 * (d.unsqueeze(-1) - self.centres).pow(2))
        cutoff = 0.5 * (torch.cos(d.clamp(max=self.r_max) * 3.14159 / self.r_max) + 1) * (1 - eye)
        x = self.embed(z)
        for layer in self.layers:
            x = layer(x, rbf, cutoff)
        return self.head[1](shifted_softplus(self.head[0](x))).sum((1, 2))


def reference(z, r):
    """Lennard-Jones energies and forces as the truth."""
    r = r.clone().requires_grad_(True)
    d = (r.unsqueeze(2) - r.unsqueeze(1)).pow(2).sum(-1)
    d = d + 10 * torch.eye(r.size(1))
    s = (2.0 / d.clamp(min=1.5)) ** 3
    e = (s * s - s).sum((1, 2)) * 0.5
    (grad,) = torch.autograd.grad(e.sum(), r)
    return e.detach(), -grad


def main():
    torch.manual_seed(61)
    model = Potential().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=5e-4, amsgrad=True)
    g = torch.Generator().manual_seed(62)
    for step in range(16):
        z = torch.randint(1, 10, (MOLECULES, ATOMS), generator=g)
        r = torch.rand(MOLECULES, ATOMS, 3, generator=g) * 7
        e_ref, f_ref = reference(z, r)
        z, r, e_ref, f_ref = (t.to(device) for t in (z, r, e_ref, f_ref))
        r.requires_grad_(True)
        energy = model(z, r)
        (grad,) = torch.autograd.grad(energy.sum(), r, create_graph=True)
        e_loss = F.mse_loss(energy / ATOMS, e_ref / ATOMS)
        f_loss = F.mse_loss(-grad, f_ref)
        loss = 0.05 * e_loss + 0.95 * f_loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.9f} forces {f_loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
