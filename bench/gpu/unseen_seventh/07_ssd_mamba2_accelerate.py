"""Minimal state-space duality (Mamba-2) language model, trained with accelerate.

The chunked scan follows the listing of the paper; no custom kernels.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

CUDA = torch.cuda.is_available()


@dataclass
class Mamba2Config:
    vocab: int = 16384 if CUDA else 64
    d_model: int = 512 if CUDA else 16
    n_layer: int = 6 if CUDA else 2
    expand: int = 2
    headdim: int = 64 if CUDA else 8
    d_state: int = 64 if CUDA else 8
    d_conv: int = 4
    chunk: int = 64 if CUDA else 8


def segsum(x):
    t = x.size(-1)
    c = torch.cumsum(x, -1)
    s = c[..., :, None] - c[..., None, :]
    mask = torch.tril(torch.ones(t, t, device=x.device, dtype=torch.bool))
    return s.masked_fill(~mask, -torch.inf)


def ssd(x, a, b, c, chunk):
    """x (B,L,H,P), a (B,L,H), b and c (B,L,N) shared by the heads."""
    B, L, H, P = x.shape
    k = L // chunk
    x = x.view(B, k, chunk, H, P)
    b, c = b.view(B, k, chunk, -1), c.view(B, k, chunk, -1)
    a = a.view(B, k, chunk, H).permute(0, 3, 1, 2)
    acum = torch.cumsum(a, -1)
    decay = torch.exp(segsum(a))
    scores = torch.einsum("bkln,bksn->bkls", c, b).unsqueeze(1) * decay
    diag = torch.einsum("bhkls,bkshp->bklhp", scores, x)
    to_end = torch.exp(acum[..., -1:] - acum)
    states = torch.einsum("bksn,bhks,bkshp->bkhpn", b, to_end, x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    carry = torch.exp(segsum(F.pad(acum[..., -1], (1, 0))))
    states = torch.einsum("bhzk,bkhpn->bzhpn", carry, states)[:, :-1]
    off = torch.einsum("bkln,bkhpn,bhkl->bklhp", c, states, torch.exp(acum))
    return (diag + off).reshape(B, L, H, P)


class Mixer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.inner = cfg.expand * cfg.d_model
        self.heads = self.inner // cfg.headdim
        conv_dim = self.inner + 2 * cfg.d_state
        self.in_proj = nn.Linear(cfg.d_model, self.inner + conv_dim + self.heads, bias=False)
        self.conv = nn.Conv1d(
            conv_dim, conv_dim, cfg.d_conv, groups=conv_dim, padding=cfg.d_conv - 1
        )
        self.dt_bias = nn.Parameter(torch.linspace(-4.0, -2.0, self.heads))
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 8, self.heads)))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.LayerNorm(self.inner)
        self.out_proj = nn.Linear(self.inner, cfg.d_model, bias=False)

    def forward(self, u):
        n, length, _ = u.shape
        z, xbc, dt = self.in_proj(u).split(
            [self.inner, self.inner + 2 * self.cfg.d_state, self.heads], -1
        )
        dt = F.softplus(dt + self.dt_bias)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :length].transpose(1, 2))
        x, b, c = xbc.split([self.inner, self.cfg.d_state, self.cfg.d_state], -1)
        x = x.reshape(n, length, self.heads, -1)
        a = -torch.exp(self.A_log) * dt
        y = ssd(x * dt.unsqueeze(-1), a, b.contiguous(), c.contiguous(), self.cfg.chunk)
        y = (y + self.D[:, None] * x).reshape(n, length, -1)
        return self.out_proj(self.norm(y * F.silu(z)))


class Mamba2LM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.d_model)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(cfg.d_model) for _ in range(cfg.n_layer))
        self.mixers = nn.ModuleList(Mixer(cfg) for _ in range(cfg.n_layer))
        self.norm_f = nn.LayerNorm(cfg.d_model)

    def forward(self, ids):
        h = self.emb(ids)
        for norm, mixer in zip(self.norms, self.mixers):
            h = h + mixer(norm(h))
        return F.linear(self.norm_f(h), self.emb.weight)


def main():
    set_seed(8)
    cfg = Mamba2Config()
    bsz, length, updates, accum = (4, 2048, 6, 2) if CUDA else (2, 32, 2, 2)
    accelerator = Accelerator(cpu=not CUDA, gradient_accumulation_steps=accum)
    g = torch.Generator().manual_seed(8)
    ids = torch.rand(bsz * updates * accum, length + 1, generator=g).pow(2) * cfg.vocab
    loader = DataLoader(TensorDataset(ids.long().clamp(max=cfg.vocab - 1)), batch_size=bsz)
    model = Mamba2LM(cfg)
    optim = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, updates, eta_min=4e-5)
    model, optim, loader, sched = accelerator.prepare(model, optim, loader, sched)

    for i, (tok,) in enumerate(loader):
        with accelerator.accumulate(model):
            logits = model(tok[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tok[:, 1:].flatten())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            sched.step()
            optim.zero_grad()
        accelerator.print(f"micro {i} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
