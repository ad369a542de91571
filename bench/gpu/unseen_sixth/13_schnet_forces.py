"""
SchNet potential: energies and forces (forces = -dE/dr, so training needs a double backward).
Lennard-Jones clusters as ground truth.
"""

import os
import tempfile

import torch
from torch import nn
from torch.autograd import grad

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
torch.manual_seed(2718)

# hyperparameters ------------------------------------------------------------
n_atoms = 48 if CUDA else 6
batch_size = 48 if CUDA else 3
n_features = 128 if CUDA else 16
n_filters = 128 if CUDA else 16
n_interactions = 5 if CUDA else 2
n_gaussians = 64 if CUDA else 10
cutoff = 6.0
rho = 0.9  # weight of forces vs energy
n_train_batches = 5 if CUDA else 2
n_epochs = 2 if CUDA else 1
lr = 5e-4


# ground truth ---------------------------------------------------------------
def lennard_jones(pos, Z):
    pos = pos.double().requires_grad_(True)
    d = (pos[:, :, None] - pos[:, None]) + torch.eye(pos.size(1)).double()[None, :, :, None] * 1e3
    r2 = d.pow(2).sum(-1)
    sigma = 1.0 + 0.05 * (Z[:, :, None] + Z[:, None]).double()
    s6 = (sigma**2 / (r2 + 0.5)) ** 3
    E = 0.5 * (4 * (s6**2 - s6)).sum((1, 2))
    F = -grad(E.sum(), pos)[0]
    return E.detach().float(), F.float()


def make_batch(seed):
    g = torch.Generator().manual_seed(seed)
    side = int(round(n_atoms ** (1 / 3) + 0.5))
    grid = torch.stack(torch.meshgrid(*[torch.arange(side + 1)] * 3, indexing="ij"), -1).reshape(
        -1, 3
    )[:n_atoms]
    pos = 1.4 * grid.float()[None] + 0.08 * torch.randn(batch_size, n_atoms, 3, generator=g)
    Z = torch.randint(1, 5, (batch_size, n_atoms), generator=g)
    E, F = lennard_jones(pos, Z)
    # flat atoms + directed edge list
    i, j = torch.where(~torch.eye(n_atoms, dtype=torch.bool))
    off = (torch.arange(batch_size) * n_atoms)[:, None]
    return {
        "Z": Z.reshape(-1),
        "R": pos.reshape(-1, 3),
        "idx_i": (i[None] + off).reshape(-1),
        "idx_j": (j[None] + off).reshape(-1),
        "mol": torch.arange(batch_size).repeat_interleave(n_atoms),
        "E": E / n_atoms,
        "F": F.reshape(-1, 3),
    }


# model ----------------------------------------------------------------------
class ShiftedSoftplus(nn.Module):
    def forward(self, x):
        return nn.functional.softplus(x) - 0.6931471805599453


class CFConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter_net = nn.Sequential(
            nn.Linear(n_gaussians, n_filters), ShiftedSoftplus(), nn.Linear(n_filters, n_filters)
        )
        self.in2f = nn.Linear(n_features, n_filters, bias=False)
        self.f2out = nn.Sequential(
            nn.Linear(n_filters, n_features), ShiftedSoftplus(), nn.Linear(n_features, n_features)
        )

    def forward(self, x, f_ij, rcut, idx_i, idx_j):
        W = self.filter_net(f_ij) * rcut[:, None]
        msg = self.in2f(x)[idx_j] * W
        agg = torch.zeros(x.size(0), n_filters, device=x.device, dtype=msg.dtype).index_add(
            0, idx_i, msg
        )
        return self.f2out(agg)


class SchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, n_features)
        self.register_buffer("centers", torch.linspace(0, cutoff, n_gaussians))
        self.width = cutoff / n_gaussians
        self.interactions = nn.ModuleList([CFConv() for _ in range(n_interactions)])
        self.atomwise = nn.Sequential(
            nn.Linear(n_features, n_features // 2), ShiftedSoftplus(), nn.Linear(n_features // 2, 1)
        )

    def forward(self, b):
        R = b["R"].requires_grad_(True)
        d = (R[b["idx_j"]] - R[b["idx_i"]]).pow(2).sum(-1).add(1e-8).sqrt()
        f_ij = torch.exp(-0.5 * ((d[:, None] - self.centers) / self.width) ** 2)
        rcut = 0.5 * (torch.cos(d * torch.pi / cutoff) + 1) * (d < cutoff)
        x = self.embedding(b["Z"])
        for block in self.interactions:
            x = x + block(x, f_ij, rcut, b["idx_i"], b["idx_j"])
        e_atom = self.atomwise(x).squeeze(-1)
        E = torch.zeros(batch_size, device=R.device).index_add(0, b["mol"], e_atom) / n_atoms
        F = -grad(E.sum() * n_atoms, R, create_graph=True)[0]
        return E, F


model = SchNet().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=lr, amsgrad=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(
    opt, T_max=n_epochs * n_train_batches, eta_min=lr / 10
)
train = [make_batch(s) for s in range(n_train_batches)]
valid = [make_batch(9999)]
f_scale = torch.cat([b["F"] for b in train]).std().item()
e_shift = torch.cat([b["E"] for b in train]).mean().item()


def losses(b):
    b = {k: v.to(device) for k, v in b.items()}
    E, F = model(b)
    l_e = ((E + e_shift - b["E"]) ** 2).mean()
    l_f = (((F - b["F"]) / f_scale) ** 2).mean()
    return (1 - rho) * l_e + rho * l_f, l_e.detach().sqrt(), l_f.detach().sqrt()


with tempfile.TemporaryDirectory() as ckpt_dir:
    best = float("inf")
    for epoch in range(n_epochs):
        model.train()
        for it, batch in enumerate(train):
            opt.zero_grad()
            loss, e_rmse, f_rmse = losses(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            opt.step()
            sched.step()
            print(
                f"epoch {epoch} it {it} loss {loss.item():.8f} rmse E {e_rmse.item():.5f} "
                f"F {f_rmse.item():.5f}",
                flush=True,
            )
        model.eval()
        val = sum(losses(b)[0].item() for b in valid) / len(valid)  # forces need grad here too
        print(f"epoch {epoch} validation {val:.6f}", flush=True)
        if val < best:
            best = val
            torch.save(model.state_dict(), os.path.join(ckpt_dir, "best_model"))
