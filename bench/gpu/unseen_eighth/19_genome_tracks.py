"""Predict coverage tracks from DNA (convolution tower + transformer, Poisson loss)."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
LENGTH = 16384 if GPU else 512
WIDTHS = (256, 288, 320, 384, 448, 512) if GPU else (8, 8, 16)
TRACKS = 64 if GPU else 3
BATCH = 20 if GPU else 2
EPOCHS, PER_EPOCH = (2, 5) if GPU else (2, 2)


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, k):
        super().__init__()
        self.bn, self.conv = nn.BatchNorm1d(cin), nn.Conv1d(cin, cout, k, padding=k // 2)

    def forward(self, x):
        return self.conv(F.gelu(self.bn(x)))


class AttentionPool(nn.Module):
    """Weighted pooling of neighbouring positions."""

    def __init__(self, c):
        super().__init__()
        self.logit = nn.Conv1d(c, c, 1, bias=False)
        nn.init.dirac_(self.logit.weight)

    def forward(self, x):
        b, c, n = x.shape
        w = self.logit(x).view(b, c, n // 2, 2).softmax(-1)
        return (x.view(b, c, n // 2, 2) * w).sum(-1)


class GenomeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(4, WIDTHS[0], 15, padding=7)
        tower, c = [], WIDTHS[0]
        for w in WIDTHS:
            tower += [ConvBlock(c, w, 5), ConvBlock(w, w, 1), AttentionPool(w)]
            c = w
        self.tower = nn.Sequential(*tower)
        block = nn.TransformerEncoderLayer(
            c, 8, 2 * c, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(block, 4 if GPU else 1, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, TRACKS), nn.Softplus())

    def forward(self, x):
        return self.head(self.body(self.tower(self.stem(x)).transpose(1, 2)))


def batch(gen):
    bases = torch.randint(0, 4, (BATCH, LENGTH), generator=gen)
    x = F.one_hot(bases, 4).transpose(1, 2).float()
    gc = F.avg_pool1d((x[:, 1:2] + x[:, 2:3]), 2 ** len(WIDTHS)).transpose(1, 2)
    rate = 4 * gc * torch.linspace(0.5, 2, TRACKS)
    return x.to(DEVICE), torch.poisson(rate, generator=gen).to(DEVICE)


def poisson_nll(pred, y):
    return (pred - y * torch.log(pred + 1e-6)).mean()


def main():
    torch.manual_seed(19)
    gen = torch.Generator().manual_seed(1919)
    model = GenomeNet().to(DEVICE)
    sizes = {}

    def watch(name):
        def hook(module, inputs, output):
            sizes[name] = output.detach().abs().mean()

        return hook

    handles = [
        m.register_forward_hook(watch(n))
        for n, m in model.named_modules()
        if isinstance(m, AttentionPool)
    ]
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS * PER_EPOCH)
    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(EPOCHS):
            model.train()
            for i in range(PER_EPOCH):
                x, y = batch(gen)
                if i % 2:  # reverse complement
                    x, y = x.flip(1, 2), y.flip(1)
                loss = poisson_nll(model(x), y)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                opt.step()
                sched.step()
                print(f"epoch {epoch} batch {i} loss {loss.item():.6f}", flush=True)
            model.eval()
            with torch.no_grad():
                x, y = batch(gen)
                print(f"epoch {epoch} validation loss {poisson_nll(model(x), y).item():.6f}")
            path = os.path.join(tmp, "last.pt")
            torch.save(model.state_dict(), path)
            model.load_state_dict(torch.load(path, map_location=DEVICE))
    print("mean size after the pools:", " ".join(f"{v.item():.3f}" for v in sizes.values()))
    for h in handles:
        h.remove()


if __name__ == "__main__":
    main()
