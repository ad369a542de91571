"""Click-through model with large embedding tables. Dense AdamW: weights + states are most of the memory."""  # noqa: E501

import os

import numpy as np
import torch
from torch import nn

TINY = os.environ.get("TINY") == "1"
rng = np.random.default_rng(10)
torch.manual_seed(10)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

CARDINALITIES = (
    [100, 50, 30] if TINY else [900_000, 600_000, 350_000, 200_000, 80_000, 20_000, 5_000, 300]
)
DIM = 8 if TINY else 128
NUM_DENSE = 13
BATCH = 16 if TINY else 4096
STEPS = 24


class CrossLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)

    def forward(self, x0, x):
        return x0 * self.lin(x) + x


class CTRModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, DIM) for n in CARDINALITIES)
        for t in self.tables:
            nn.init.normal_(t.weight, std=0.01)
        self.bottom = nn.Sequential(
            nn.Linear(NUM_DENSE, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU()
        )
        d = DIM * (len(CARDINALITIES) + 1)
        self.cross = nn.ModuleList(CrossLayer(d) for _ in range(3))
        self.top = nn.Sequential(nn.Linear(d, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 1))

    def forward(self, dense, cat):
        feats = [self.bottom(dense)] + [t(cat[:, i]) for i, t in enumerate(self.tables)]
        x0 = torch.cat(feats, dim=1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.top(x).squeeze(1)


def next_batch():
    dense = rng.lognormal(size=(BATCH, NUM_DENSE)).astype("float32")
    # power-law ids like real traffic
    cat = np.stack([np.minimum(rng.zipf(1.3, BATCH), n) - 1 for n in CARDINALITIES], axis=1)
    click = (rng.random(BATCH) < 0.08).astype("float32")
    return (
        torch.from_numpy(np.log1p(dense)).to(device),
        torch.from_numpy(cat).to(device),
        torch.from_numpy(click).to(device),
    )


def sample_weights(y):
    """Clicks are rare: weigh them up, and keep the mean weight at one."""
    w = torch.where(y > 0, 8.0, 1.0)
    return w / w.mean()


@torch.no_grad()
def evaluate(model, n=2):
    model.eval()
    tot = 0.0
    for _ in range(n):
        dense, cat, y = next_batch()
        tot += nn.functional.binary_cross_entropy_with_logits(model(dense, cat), y).item()
    model.train()
    return tot / n


def main():
    model = CTRModel().to(device)
    opt = torch.optim.AdamW(
        [
            {"params": model.tables.parameters(), "lr": 2e-3, "weight_decay": 0.0},
            {
                "params": [p for n, p in model.named_parameters() if not n.startswith("tables")],
                "lr": 1e-3,
            },
        ]
    )
    bce = nn.BCEWithLogitsLoss(reduction="none")
    for step in range(STEPS):
        dense, cat, y = next_batch()
        per_sample = bce(model(dense, cat), y)
        loss = (per_sample * sample_weights(y)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.10f}", flush=True)
        if step % 12 == 11:
            print(f"valid {evaluate(model):.6f}")


if __name__ == "__main__":
    main()
