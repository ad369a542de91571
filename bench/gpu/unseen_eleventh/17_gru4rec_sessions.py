"""Session recommendations with a GRU: BPR-max loss against in-batch and sampled negatives."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(71)

batch_size = 256 if large else 8
items = 50000 if large else 200
dim = 256 if large else 16
longest = 100 if large else 10
extra = 16384 if large else 32


def sessions(n):
    """People walk through neighbouring items of one category and sometimes jump."""
    g = torch.Generator().manual_seed(15)
    out = []
    for _ in range(n):
        length = int(torch.randint(longest // 2, longest + 2, (1,), generator=g))
        start = int((torch.rand(1, generator=g) ** 2) * (items // 20)) * 20
        walk = start + torch.randint(1, 4, (length,), generator=g).cumsum(0) % 20
        jump = torch.rand(length, generator=g) < 0.05
        walk = torch.where(jump, torch.randint(0, items, (length,), generator=g), walk)
        out.append(walk % (items - 1) + 1)
    return out


def collate(batch):
    batch = sorted(batch, key=len, reverse=True)
    lengths = torch.tensor([len(s) - 1 for s in batch])
    past = pad_sequence([s[:-1] for s in batch], batch_first=True)
    following = pad_sequence([s[1:] for s in batch], batch_first=True)
    return past, following, lengths


class GRU4Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(items, dim, padding_idx=0)
        self.bias = nn.Embedding(items, 1)
        nn.init.normal_(self.items.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)
        self.drop = nn.Dropout(0.2)
        self.gru = nn.GRU(dim, dim, num_layers=2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(dim, dim)

    def forward(self, past, lengths):
        x = pack_padded_sequence(self.drop(self.items(past)), lengths, batch_first=True)
        x, _ = pad_packed_sequence(self.gru(x)[0], batch_first=True)
        return self.out(x)

    def score(self, states, candidates):
        return states @ self.items(candidates).t() + self.bias(candidates).squeeze(-1)


def bpr_max(positive, scores, wrong, reg=0.5):
    weight = scores.masked_fill(~wrong, -1e4).softmax(dim=-1)
    gain = (weight * torch.sigmoid(positive - scores)).sum(-1)
    penalty = (weight * scores.square()).sum(-1)
    return -torch.log(gain + 1e-12) + reg * penalty


data = sessions(batch_size * 6)
loader = DataLoader(data, batch_size=batch_size, shuffle=True, collate_fn=collate)
counts = torch.bincount(torch.cat(data), minlength=items).float() ** 0.5
model = GRU4Rec().to(device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
step = 0
for epoch in range(2):
    for past, following, lengths in loader:
        negatives = torch.multinomial(counts, extra, replacement=True).to(device)
        past, following = past.to(device), following.to(device)
        states = model(past, lengths)
        real = following > 0
        states, goal = states[real], following[real]
        candidates = torch.cat([goal[:: max(1, longest // 2)], negatives])
        positive = (states * model.items(goal)).sum(-1, keepdim=True) + model.bias(goal)
        scores = model.score(states, candidates)
        wrong = goal[:, None] != candidates[None, :]
        loss = bpr_max(positive, scores, wrong).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            rank = (scores > positive).logical_and(wrong).sum(-1)
            recall = (rank < 20).float().mean().item()
        print(f"epoch {epoch} step {step} loss {loss.item():.6f} recall {recall:.4f}")
        step += 1
