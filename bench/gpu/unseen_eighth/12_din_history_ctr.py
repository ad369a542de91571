"""Deep Interest Network: click prediction with attention over a ragged purchase history."""

import torch
import torch.nn as nn

CUDA = torch.cuda.is_available()
DEV = torch.device("cuda" if CUDA else "cpu")
ITEMS, CATS, USERS = (100_000, 1000, 50_000) if CUDA else (200, 10, 50)
EMB = 64 if CUDA else 8
MAX_HIST = 100 if CUDA else 10
BATCH = 8192 if CUDA else 16
STEPS = 10 if CUDA else 4


class Dice(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, affine=False)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        p = torch.sigmoid(self.bn(x))
        return (p * x + self.alpha * (1 - p) * x).view(shape)


class DIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, EMB, padding_idx=0)
        self.cat = nn.Embedding(CATS, EMB, padding_idx=0)
        self.user = nn.Embedding(USERS, EMB)
        d = 2 * EMB
        self.attn = nn.Sequential(
            nn.Linear(4 * d, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1)
        )
        self.mlp = nn.Sequential(
            nn.Linear(2 * d + EMB, 200), Dice(200), nn.Linear(200, 80), Dice(80), nn.Linear(80, 1)
        )
        for e in (self.item, self.cat, self.user):
            nn.init.normal_(e.weight, std=0.05)

    def forward(self, user, item, cat, h_item, h_cat):
        target = torch.cat([self.item(item), self.cat(cat)], -1)
        hist = torch.cat([self.item(h_item), self.cat(h_cat)], -1)
        q = target.unsqueeze(1).expand_as(hist)
        score = self.attn(torch.cat([q, hist, q - hist, q * hist], -1)).squeeze(-1)
        score = score.masked_fill(h_item == 0, -1e9).softmax(-1)
        interest = (score.unsqueeze(-1) * hist).sum(1)
        return self.mlp(torch.cat([self.user(user), target, interest], -1)).squeeze(-1)


def draw(gen):
    """Histories are cut to the longest one of the batch."""
    n = (torch.rand(BATCH, generator=gen) ** 2 * MAX_HIST).long().clamp(min=1)
    t = int(n.max())
    h_item = torch.randint(1, ITEMS, (BATCH, t), generator=gen)
    h_item = h_item * (torch.arange(t)[None] < n[:, None])
    item = torch.randint(1, ITEMS, (BATCH,), generator=gen)
    item = torch.where(torch.rand(BATCH, generator=gen) < 0.5, h_item[:, 0], item)
    h_cat = torch.where(h_item > 0, h_item % (CATS - 1) + 1, 0)
    user = torch.randint(0, USERS, (BATCH,), generator=gen)
    click = (item == h_item[:, 0]).float()
    tensors = (user, item, item % (CATS - 1) + 1, h_item, h_cat, click)
    return [x.to(DEV) for x in tensors]


torch.manual_seed(12)
model = DIN().to(DEV)
tables = [model.item.weight, model.cat.weight, model.user.weight]
ids = {id(t) for t in tables}
rest = [p for p in model.parameters() if id(p) not in ids]
opt_tables = torch.optim.Adagrad(tables, lr=0.05)
opt_rest = torch.optim.Adam(rest, lr=2e-3)
bce = nn.BCEWithLogitsLoss()
gen = torch.Generator().manual_seed(1212)

for i in range(STEPS):
    *x, click = draw(gen)
    logit = model(*x)
    loss = bce(logit, click)
    opt_tables.zero_grad(set_to_none=True)
    opt_rest.zero_grad(set_to_none=True)
    loss.backward()
    opt_tables.step()
    opt_rest.step()
    print(f"batch {i} history {x[3].shape[1]} loss {loss.item():.7f}", flush=True)

model.eval()
with torch.no_grad():
    *x, click = draw(gen)
    print(f"held out loss {bce(model(*x), click).item():.7f}")
