"""Mini Evoformer: MSA + pair stack, triangle updates, recycling; distogram + masked-MSA losses."""

import os
import random
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

CUDA = torch.cuda.is_available()
dev = "cuda" if CUDA else "cpu"

N_RES = 224 if CUDA else 12
N_SEQ = 96 if CUDA else 4
C_M, C_Z = (128, 128) if CUDA else (8, 8)
H_M, H_Z = (8, 4) if CUDA else (2, 2)
BLOCKS = 3 if CUDA else 1
BINS = 64 if CUDA else 16
ACCUM = 2
UPDATES = 6 if CUDA else 2
MAX_RECYCLE = 2


class GatedAttention(nn.Module):
    """attention over the second to last axis of (..., n, c), with a broadcastable bias"""

    def __init__(self, c, h):
        super().__init__()
        self.h = h
        self.norm = nn.LayerNorm(c)
        self.qkv, self.gate, self.out = (
            nn.Linear(c, 3 * c, bias=False),
            nn.Linear(c, c),
            nn.Linear(c, c),
        )
        nn.init.zeros_(self.gate.weight)
        nn.init.ones_(self.gate.bias)

    def forward(self, x, bias=None):
        x = self.norm(x)
        q, k, v = (
            t.unflatten(-1, (self.h, -1)).transpose(-2, -3) for t in self.qkv(x).chunk(3, -1)
        )
        a = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5
        if bias is not None:
            a = a + bias
        o = (a.softmax(-1) @ v).transpose(-2, -3).flatten(-2)
        return self.out(torch.sigmoid(self.gate(x)) * o)


class Transition(nn.Sequential):
    def __init__(self, c, n=4):
        super().__init__(nn.LayerNorm(c), nn.Linear(c, n * c), nn.ReLU(), nn.Linear(n * c, c))


class TriangleMultiplication(nn.Module):
    def __init__(self, c, outgoing):
        super().__init__()
        self.eq = "ikc,jkc->ijc" if outgoing else "kic,kjc->ijc"
        self.norm_in, self.norm_out = nn.LayerNorm(c), nn.LayerNorm(c)
        self.proj, self.pgate = nn.Linear(c, 2 * c), nn.Linear(c, 2 * c)
        self.out, self.ogate = nn.Linear(c, c), nn.Linear(c, c)

    def forward(self, z):
        z = self.norm_in(z)
        a, b = (torch.sigmoid(self.pgate(z)) * self.proj(z)).chunk(2, -1)
        o = torch.einsum(self.eq, a, b) / z.size(0) ** 0.5
        return torch.sigmoid(self.ogate(z)) * self.out(self.norm_out(o))


class EvoformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.row, self.col = GatedAttention(C_M, H_M), GatedAttention(C_M, H_M)
        self.pair_bias = nn.Sequential(nn.LayerNorm(C_Z), nn.Linear(C_Z, H_M, bias=False))
        self.m_trans, self.z_trans = Transition(C_M), Transition(C_Z)
        self.opm_norm, self.opm_a, self.opm_b = (
            nn.LayerNorm(C_M),
            nn.Linear(C_M, 16),
            nn.Linear(C_M, 16),
        )
        self.opm_out = nn.Linear(256, C_Z)
        self.tri_out, self.tri_in = (
            TriangleMultiplication(C_Z, True),
            TriangleMultiplication(C_Z, False),
        )
        self.tri_start, self.tri_end = GatedAttention(C_Z, H_Z), GatedAttention(C_Z, H_Z)
        self.tb_start, self.tb_end = (
            nn.Linear(C_Z, H_Z, bias=False),
            nn.Linear(C_Z, H_Z, bias=False),
        )

    def forward(self, m, z):
        m = m + self.row(m, self.pair_bias(z).permute(2, 0, 1))
        m = m + self.col(m.transpose(0, 1)).transpose(0, 1)
        m = m + self.m_trans(m)
        n = self.opm_norm(m)
        outer = torch.einsum("sic,sjd->ijcd", self.opm_a(n), self.opm_b(n)).flatten(-2) / m.size(0)
        z = z + self.opm_out(outer)
        z = z + self.tri_out(z)
        z = z + self.tri_in(z)
        z = z + self.tri_start(z, self.tb_start(z).permute(2, 0, 1))
        zt = z.transpose(0, 1)
        z = z + self.tri_end(zt, self.tb_end(zt).permute(2, 0, 1)).transpose(0, 1)
        return m, z + self.z_trans(z)


class MiniFold(nn.Module):
    def __init__(self):
        super().__init__()
        self.aa, self.left, self.right = (
            nn.Embedding(23, C_M),
            nn.Embedding(23, C_Z),
            nn.Embedding(23, C_Z),
        )
        self.relpos = nn.Embedding(65, C_Z)
        self.rec_m, self.rec_z = nn.LayerNorm(C_M), nn.LayerNorm(C_Z)
        self.blocks = nn.ModuleList(EvoformerBlock() for _ in range(BLOCKS))
        self.disto, self.msa_head = nn.Linear(C_Z, BINS), nn.Linear(C_M, 23)

    def iteration(self, msa, prev):
        L = msa.size(1)
        r = torch.arange(L, device=msa.device)
        z = (
            self.left(msa[0])[:, None]
            + self.right(msa[0])[None]
            + self.relpos((r[:, None] - r).clamp(-32, 32) + 32)
        )
        m = self.aa(msa)
        if prev is not None:
            z = z + self.rec_z(prev[1])
            m = torch.cat([(m[0] + self.rec_m(prev[0]))[None], m[1:]])
        for blk in self.blocks:
            m, z = blk(m, z)
        return m, z

    def forward(self, msa, n_recycle):
        prev = None
        with torch.no_grad():
            for _ in range(n_recycle):
                m, z = self.iteration(msa, prev)
                prev = (m[0].detach(), z.detach())
        m, z = self.iteration(msa, prev)
        return self.disto(z + z.transpose(0, 1)), self.msa_head(m)


def protein(i):
    g = torch.Generator().manual_seed(4242 + i)
    seq = torch.randint(0, 20, (N_RES,), generator=g)
    msa = seq.repeat(N_SEQ, 1)
    mut = torch.rand(N_SEQ, N_RES, generator=g) < 0.2
    msa = torch.where(mut, torch.randint(0, 21, msa.shape, generator=g), msa)
    msa[0] = seq
    mask = torch.rand(N_SEQ, N_RES, generator=g) < 0.15
    step = (
        F.normalize(torch.randn(N_RES, 3, generator=g) + 0.5 * (seq[:, None] % 3 - 1), dim=-1) * 3.8
    )
    xyz = step.cumsum(0)
    bins = torch.bucketize(torch.cdist(xyz, xyz), torch.linspace(2.3, 40, BINS - 1))
    return msa.masked_fill(mask, 22), msa, mask, bins


def main():
    random.seed(0)
    torch.manual_seed(0)
    net = MiniFold().to(dev)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    opt = torch.optim.Adam(net.parameters(), lr=5e-4, eps=1e-6)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=4)
    idx = 0
    for update in range(UPDATES):
        opt.zero_grad()
        total = 0.0
        n_recycle = random.randint(0, MAX_RECYCLE)
        for _ in range(ACCUM):
            inp, target, mask, bins = (t.to(dev) for t in protein(idx))
            idx += 1
            disto, msa_logits = net(inp, n_recycle)
            l_dist = F.cross_entropy(disto.flatten(0, 1), bins.flatten())
            l_msa = F.cross_entropy(msa_logits[mask], target[mask])
            loss = (0.3 * l_dist + 2.0 * l_msa) / ACCUM
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        opt.step()
        warm.step()
        ema.update_parameters(net)
        print(
            f"update {update} loss {total:.8f} recycles {n_recycle} distogram {l_dist.item():.5f}",
            flush=True,
        )

    with torch.no_grad():
        inp, _, _, bins = (t.to(dev) for t in protein(10_000))
        acc = (ema(inp, MAX_RECYCLE)[0].argmax(-1) == bins).float().mean().item()
    print(f"held-out distogram accuracy (EMA weights): {acc:.4f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save({"model": net.state_dict(), "opt": opt.state_dict()}, os.path.join(d, "ck.pt"))


if __name__ == "__main__":
    main()
