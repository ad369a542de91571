"""Retrieval with two towers: in-batch negatives, logQ correction, accidental hits masked.
The tables and their Adam moments are most of the memory."""

import os

import torch
import torch.nn.functional as F
from torch import nn

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
USERS, ITEMS, DIM, HIST = (200, 300, 16, 6) if SMALL else (400_000, 900_000, 128, 48)
BATCH, STEPS, OUT = (16, 10, 8) if SMALL else (6144, 14, 128)


class Tower(nn.Module):
    def __init__(self, inp, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inp, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden // 2),
            nn.LayerNorm(hidden // 2),
            nn.GELU(),
            nn.Linear(hidden // 2, OUT),
        )

    def forward(self, *parts):
        return F.normalize(self.net(torch.cat(parts, -1)), dim=-1)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, DIM), nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.country, self.genre = nn.Embedding(60, 16), nn.Embedding(40, 16)
        self.att = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, 1))
        self.u_tower, self.i_tower = Tower(2 * DIM + 16, 8 * DIM), Tower(DIM + 16, 8 * DIM)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)

    def forward(self, b):
        h = self.item(b["history"])
        score = self.att(h).squeeze(-1).masked_fill(b["history"] == 0, -1e9)
        pooled = (score.softmax(-1).unsqueeze(-1) * h).sum(1)
        u = self.u_tower(self.user(b["user"]), pooled, self.country(b["country"]))
        i = self.i_tower(self.item(b["target"]), self.genre(b["genre"]))
        return u, i


def popularity(g, n):
    """Popular items have small numbers."""
    return (torch.rand(n, generator=g) ** 3 * (ITEMS - 1)).long() + 1


def sample(g):
    history = popularity(g, (BATCH, HIST)).clamp(max=ITEMS - 1)
    length = torch.randint(1, HIST + 1, (BATCH, 1), generator=g)
    history[torch.arange(HIST) >= length] = 0
    target = popularity(g, BATCH).clamp(max=ITEMS - 1)
    batch = {
        "user": torch.randint(0, USERS, (BATCH,), generator=g),
        "history": history,
        "country": torch.randint(0, 60, (BATCH,), generator=g),
        "target": target,
        "genre": target % 40,
        "logq": -(2 / 3) * torch.log(target.float() / ITEMS) - torch.log(torch.tensor(3.0 * ITEMS)),
    }
    return {k: v.to(device) for k, v in batch.items()}


def sampled_softmax(u, i, b, temperature=0.07):
    logits = u @ i.t() / temperature - b["logq"][None]
    same = b["target"][:, None] == b["target"][None]
    same.fill_diagonal_(False)
    logits = logits.masked_fill(same, float("-inf"))
    return F.cross_entropy(logits, torch.arange(len(u), device=u.device))


torch.manual_seed(64)
model = Retrieval().to(device)
tables = [model.user.weight, model.item.weight]
dense = [p for n, p in model.named_parameters() if n not in ("user.weight", "item.weight")]
optimizer = torch.optim.Adam([{"params": tables, "lr": 1e-2}, {"params": dense, "lr": 1e-3}])
g = torch.Generator().manual_seed(65)
for step in range(STEPS):
    batch = sample(g)
    u, i = model(batch)
    loss = sampled_softmax(u, i, batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}", flush=True)
