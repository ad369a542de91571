"""Base pairs of RNA from sequence: a transformer and a 2D residual net on pairs, ragged, bf16."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(79)
rng = random.Random(79)

batch_size = 12 if large else 2
short, long = (160, 224) if large else (24, 40)
dim, pair_dim = (256, 64) if large else (32, 8)
seq_layers, pair_blocks = (4, 10) if large else (1, 2)
accumulate = 2
letters = "ACGU"
partner = {"A": "U", "U": "A", "C": "G", "G": "C"}


def hairpins(n):
    """A sequence of stems with loops between them; returns indices and the paired positions."""
    seq, pairs = [], []
    while len(seq) < n - 24:
        stem = rng.randint(5, 9)
        arm = [rng.choice(letters) for _ in range(stem)]
        loop = [rng.choice("AAG") for _ in range(rng.randint(3, 6))]
        first = len(seq)
        seq += arm + loop + [partner[a] for a in reversed(arm)]
        pairs += [(first + k, len(seq) - 1 - k) for k in range(stem)]
        seq += [rng.choice("AAU") for _ in range(rng.randint(0, 4))]
    seq += [rng.choice("AAU") for _ in range(n - len(seq))]
    return torch.tensor([letters.index(a) + 1 for a in seq[:n]]), pairs


def make_batch():
    made = [hairpins(rng.randint(short, long)) for _ in range(batch_size)]
    made[0] = hairpins(long)
    n = max(len(s) for s, _ in made)
    seq = torch.zeros(batch_size, n, dtype=torch.long)
    contact = torch.zeros(batch_size, n, n)
    for b, (s, pairs) in enumerate(made):
        seq[b, : len(s)] = s
        for i, j in pairs:
            contact[b, i, j] = contact[b, j, i] = 1.0
    return seq.to(device), contact.to(device)


class PairBlock(nn.Module):
    def __init__(self, dilation, dropout=0.1):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, pair_dim), nn.GroupNorm(8, pair_dim)
        self.c1 = nn.Conv2d(pair_dim, pair_dim, 3, padding=dilation, dilation=dilation)
        self.c2 = nn.Conv2d(pair_dim, pair_dim, 3, padding=1)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, z, mask):
        y = self.c1(F.elu(self.n1(z)) * mask)
        return z + self.c2(self.dropout(F.elu(self.n2(y))) * mask)


class ContactNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, dim, padding_idx=0)
        self.place = nn.Embedding(512, dim)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, seq_layers, enable_nested_tensor=False)
        self.left, self.right = nn.Linear(dim, pair_dim), nn.Linear(dim, pair_dim)
        self.kinds = nn.Embedding(25, pair_dim)
        self.blocks = nn.ModuleList(PairBlock((1, 2, 4, 8)[i % 4]) for i in range(pair_blocks))
        self.head = nn.Conv2d(pair_dim, 1, 1)
        nn.init.constant_(self.head.bias, -4.0)

    def pairs(self, h, seq):
        z = self.left(h)[:, :, None] * self.right(h)[:, None, :]
        return z + self.kinds(seq[:, :, None] * 5 + seq[:, None, :])

    def forward(self, seq):
        pad = seq == 0
        h = self.embed(seq) + self.place(torch.arange(seq.shape[1], device=seq.device))
        h = self.encoder(h, src_key_padding_mask=pad)
        z = checkpoint(self.pairs, h, seq, use_reentrant=False).permute(0, 3, 1, 2)
        mask = (~pad[:, :, None] & ~pad[:, None, :]).float()[:, None]
        for block in self.blocks:
            z = block(z, mask)
        logits = self.head(z).squeeze(1)
        return (logits + logits.transpose(1, 2)) / 2, mask.squeeze(1)


model = ContactNet().to(device)
ema = {k: v.detach().clone() for k, v in model.named_parameters()}
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, amsgrad=True)
for step in range(10):
    value = 0.0
    for _ in range(accumulate):
        seq, contact = make_batch()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits, mask = model(seq)
        logits = logits.float()
        bce = F.binary_cross_entropy_with_logits(
            logits, contact, weight=mask, pos_weight=torch.tensor(20.0, device=device),
            reduction="sum",
        ) / mask.sum()  # fmt: skip
        p = logits.sigmoid() * mask
        dice = 1 - 2 * (p * contact).sum() / (p.sum() + contact.sum())
        loss = (bce + 0.2 * dice) / accumulate
        loss.backward()
        value += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for k, v in model.named_parameters():
            ema[k].lerp_(v, 0.05)
    print(f"step {step} loss {value:.6f}")
