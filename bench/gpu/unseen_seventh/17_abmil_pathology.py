"""Whole-slide tumour subtyping, end to end attention-based MIL (one slide = one bag).

Slides differ in the number of tiles, so the loop takes one bag at a time and steps the
optimiser every `BAGS_PER_STEP` bags.  A small penalty keeps the attention spread out.
"""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
TILE = 128 if CUDA else 16
TILES = (260, 420) if CUDA else (5, 9)
BASE = 48 if CUDA else 8
SUBTYPES = 3
BAGS_PER_STEP = 3
TRAIN_SLIDES = 12 if CUDA else 3
VAL_SLIDES = 3 if CUDA else 2
EPOCHS = 2


class SlideSet(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        count = int(torch.randint(*TILES, (1,), generator=g))
        label = int(torch.randint(0, SUBTYPES, (1,), generator=g))
        tiles = torch.rand(count, 3, TILE, TILE, generator=g)
        tumour = torch.rand(count, generator=g) < 0.3
        tiles[tumour, label] *= 0.6
        return tiles, label


def conv(cin, cout, stride):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(8, cout), nn.SiLU()
    )


class TileEncoder(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.stages = nn.ModuleList()
        cin = 3
        for cout in (w, 2 * w, 4 * w, 8 * w):
            self.stages.append(nn.ModuleList([conv(cin, cout, 2), conv(cout, cout, 1)]))
            cin = cout
        self.out_dim = cin

    def forward(self, x):
        for reduce, refine in self.stages:
            x = reduce(x)
            x = x + refine(x)
        return x.mean((2, 3))


class GatedAttentionMIL(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = TileEncoder(BASE)
        d = self.encoder.out_dim
        self.V, self.U = nn.Linear(d, 128), nn.Linear(d, 128)
        self.w = nn.Linear(128, 1)
        self.bag_head = nn.Linear(d, SUBTYPES)

    def forward(self, tiles):
        h = self.encoder(tiles)
        score = self.w(torch.tanh(self.V(h)) * torch.sigmoid(self.U(h))).squeeze(1)
        attention = score.softmax(0)
        return self.bag_head(attention @ h), attention


class Experiment:
    def __init__(self, folder):
        torch.manual_seed(1)
        self.folder = folder
        self.model = GatedAttentionMIL().to(DEVICE)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=2e-4, weight_decay=1e-3)
        self.best = float("inf")
        self.steps = 0

    def bag_loss(self, tiles, label):
        logits, attention = self.model(tiles.to(DEVICE))
        target = torch.tensor([label], device=DEVICE)
        loss = F.cross_entropy(logits.unsqueeze(0), target)
        return loss + 0.1 * len(tiles) * attention.square().sum()

    def train_epoch(self, slides, order):
        self.model.train()
        self.optim.zero_grad()
        total = 0.0
        for n, i in enumerate(order, 1):
            loss = self.bag_loss(*slides[i]) / BAGS_PER_STEP
            loss.backward()
            total += loss.item()
            if n % BAGS_PER_STEP == 0:
                nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
                self.optim.step()
                self.optim.zero_grad()
                self.steps += 1
                print(f"step {self.steps} loss {total:.8f}", flush=True)
                total = 0.0

    @torch.no_grad()
    def validate(self, slides):
        self.model.eval()
        value = 0.0
        for tiles, label in (slides[i] for i in range(len(slides))):
            logits = self.model(tiles.to(DEVICE))[0]
            value -= logits.log_softmax(0)[label].item() / len(slides)
        if value < self.best:
            self.best = value
            torch.save(self.model.state_dict(), os.path.join(self.folder, "best.pt"))
        print(f"validation nll {value:.4f} best {self.best:.4f}")


if __name__ == "__main__":
    train, val = SlideSet(TRAIN_SLIDES, 100), SlideSet(VAL_SLIDES, 900)
    shuffler = torch.Generator().manual_seed(2)
    with tempfile.TemporaryDirectory() as tmp:
        exp = Experiment(tmp)
        for _ in range(EPOCHS):
            exp.train_epoch(train, torch.randperm(len(train), generator=shuffler).tolist())
            exp.validate(val)
