# Forecasting of quantiles: variable selection by gates, an LSTM over past and future, attention,
# pinball loss, a dictionary as the batch from a DataLoader.
# tiny: --hidden 8 --batch 4 --past 10 --device cpu
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=160)
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--past", type=int, default=168)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(1)
FUTURE, VARS = 24, 10


class Series(Dataset):
    def __len__(self):
        return 12 * args.batch

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = args.past + FUTURE
        x = torch.randn(n, VARS, generator=g)
        return {
            "past": x[: args.past],
            "known": x[args.past :, :4],
            "target": x[args.past :, :2].sum(1),
            "shop": i % 50,
        }


class Gate(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.a, self.b = nn.Linear(i, h), nn.Linear(h, 2 * h)
        self.skip, self.norm = nn.Linear(i, h), nn.LayerNorm(h)

    def forward(self, x):
        return self.norm(self.skip(x) + nn.functional.glu(self.b(nn.functional.elu(self.a(x))), -1))


class Select(nn.Module):
    def __init__(self, n, h):
        super().__init__()
        self.each = nn.ModuleList(Gate(1, h) for _ in range(n))
        self.weigh = Gate(n, n)

    def forward(self, x):
        w = self.weigh(x).softmax(-1)
        seen = torch.stack([g(x[..., i : i + 1]) for i, g in enumerate(self.each)], -1)
        return (seen * w.unsqueeze(-2)).sum(-1)


class TFT(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.shop = nn.Embedding(50, h)
        self.past, self.known = Select(VARS, h), Select(4, h)
        self.enc, self.dec = nn.LSTM(h, h, batch_first=True), nn.LSTM(h, h, batch_first=True)
        self.att = nn.MultiheadAttention(h, 4, batch_first=True)
        self.post, self.head = Gate(h, h), nn.Linear(h, 3)

    def forward(self, batch):
        s = self.shop(batch["shop"])[:, None]
        past, state = self.enc(self.past(batch["past"]) + s)
        future, _ = self.dec(self.known(batch["known"]) + s, state)
        both = torch.cat([past, future], 1)
        y, _ = self.att(future, both, both, need_weights=False)
        return self.head(self.post(y + future))


def pinball(out, target):
    q = torch.tensor([0.1, 0.5, 0.9], device=out.device)
    e = target[..., None] - out
    return torch.maximum(q * e, (q - 1) * e).mean()


model = TFT(args.hidden).to(args.device)
opt = torch.optim.Adam(model.parameters(), 1e-3)
for step, batch in enumerate(DataLoader(Series(), args.batch)):
    batch = {k: v.to(args.device) for k, v in batch.items()}
    opt.zero_grad()
    loss = pinball(model(batch), batch["target"])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
