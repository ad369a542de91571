"""Language model with multi-scale retention in its chunkwise form, bf16, accumulated gradients."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
batch_size = 16 if large else 4
seq_len = 1024 if large else 64
dim, heads, depth = (768, 8, 8) if large else (64, 4, 2)
chunk = 256 if large else 16
vocab = 8192 if large else 97
accum, steps = 2, 10

torch.manual_seed(11)


class Retention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.norm = nn.GroupNorm(heads, dim)
        gamma = 1 - torch.exp(torch.linspace(math.log(1 / 16), math.log(1 / 256), heads))
        pos = torch.arange(chunk)
        gap = pos[:, None] - pos[None, :]
        inner = torch.where(gap >= 0, gamma[:, None, None] ** gap.clamp(min=0), 0.0)
        self.register_buffer("inner", inner)
        self.register_buffer("from_state", (gamma[:, None] ** (pos + 1))[..., None])
        self.register_buffer("to_state", (gamma[:, None] ** (chunk - 1 - pos))[..., None])
        self.register_buffer("whole", (gamma**chunk)[:, None, None])

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
        k = k * (dim // heads) ** -0.5
        state = torch.zeros(b, heads, dim // heads, dim // heads, device=x.device)
        outputs = []
        for i in range(0, t, chunk):
            qc, kc, vc = (a[:, :, i : i + chunk] for a in (q, k, v))
            scores = qc @ kc.transpose(-1, -2) * self.inner
            y = scores @ vc + (qc @ state) * self.from_state
            state = state * self.whole + (kc * self.to_state).transpose(-1, -2) @ vc
            outputs.append(y)
        y = torch.cat(outputs, dim=2).transpose(1, 2).reshape(b * t, dim)
        y = self.norm(y).view(b, t, dim)
        return self.out(F.silu(self.gate(x)) * y)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.retention = Retention()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        x = x + self.retention(self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class RetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed.weight)


def batches():
    g = torch.Generator().manual_seed(5)
    table = torch.randint(0, vocab, (64, 8), generator=g)
    while True:
        state = torch.randint(0, 64, (batch_size,), generator=g)
        choice = torch.randint(0, 8, (batch_size, seq_len + 1), generator=g)
        ids = torch.empty(batch_size, seq_len + 1, dtype=torch.long)
        for t in range(seq_len + 1):
            ids[:, t] = table[state, choice[:, t]]
            state = (state * 5 + choice[:, t]) % 64
        yield ids[:, :-1].to(device), ids[:, 1:].to(device)


model = RetNet().to(device)
decay = [p for p in model.parameters() if p.ndim > 1]
plain = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
    lr=1e-3,
    betas=(0.9, 0.95),
)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min(1.0, (s + 1) / 3) * 0.5 * (1 + math.cos(math.pi * s / (2 * steps)))
)
stream = batches()
for step in range(steps):
    total = 0.0
    for _ in range(accum):
        ids, labels = next(stream)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()) / accum
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} loss {total:.6f} lr {schedule.get_last_lr()[0]:.2e}")
