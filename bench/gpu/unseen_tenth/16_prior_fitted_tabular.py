"""Prior-fitted network for tabular classification: each batch item is a whole synthetic dataset."""

import random
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class PriorConfig:
    rows: int = 1024
    max_features: int = 32
    max_classes: int = 8
    hidden: int = 64


@dataclass
class TrainConfig:
    dim: int = 512
    layers: int = 12
    heads: int = 8
    datasets: int = 20
    accumulate: int = 2
    updates: int = 10
    lr: float = 3e-4
    prior: PriorConfig = field(default_factory=PriorConfig)


def get_config():
    if torch.cuda.is_available():
        return TrainConfig(), torch.device("cuda")
    small = PriorConfig(rows=48, max_features=6, max_classes=3, hidden=8)
    return TrainConfig(32, 2, 2, 3, 2, 6, prior=small), torch.device("cpu")


class StructuralPrior:
    """Random MLPs over random causes; features and the label are read off their hidden units."""

    def __init__(self, cfg, device):
        self.cfg, self.device = cfg, device

    @torch.no_grad()
    def sample(self, n):
        c = self.cfg
        features = random.randint(c.max_features // 2, c.max_features)
        classes = random.randint(2, c.max_classes)
        x = torch.randn(n, c.rows, c.hidden, device=self.device)
        units = []
        act = random.choice([torch.tanh, F.relu, torch.sin])
        for _ in range(random.randint(2, 4)):
            w = torch.randn(n, c.hidden, c.hidden, device=self.device) / c.hidden**0.5
            keep = torch.rand_like(w) < 0.5
            x = act(x @ (w * keep)) + 0.05 * torch.randn_like(x)
            units.append(x)
        units = torch.cat(units, -1)
        pick = torch.randperm(units.shape[-1], device=self.device)
        table = units[..., pick[:features]]
        score = units[..., pick[features]]
        cuts = torch.quantile(score, torch.linspace(0, 1, classes + 1)[1:-1].to(score), dim=1)
        label = (score[..., None] > cuts.t()[:, None]).sum(-1)
        table = F.pad(table, (0, c.max_features - features)) * (c.max_features / features)
        return table, label


class Encoder(nn.Module):
    """Rows of the context attend to the context; queries attend to the context and nothing else."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.o = nn.Linear(dim, dim)
        self.ff1, self.ff2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(0.05)

    def forward(self, x, split):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x[:, :split]).chunk(2, -1)
        k = k.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = v.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.n1(x + self.drop(self.o(y)))
        return self.n2(x + self.drop(self.ff2(F.gelu(self.ff1(x)))))


class PriorFittedNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.x_in = nn.Linear(cfg.prior.max_features, cfg.dim)
        self.y_in = nn.Embedding(cfg.prior.max_classes, cfg.dim)
        self.layers = nn.ModuleList(Encoder(cfg.dim, cfg.heads) for _ in range(cfg.layers))
        self.head = nn.Sequential(
            nn.Linear(cfg.dim, 2 * cfg.dim),
            nn.GELU(),
            nn.Linear(2 * cfg.dim, cfg.prior.max_classes),
        )

    def forward(self, table, label, split):
        mean = table[:, :split].mean(1, keepdim=True)
        std = table[:, :split].std(1, keepdim=True) + 1e-4
        x = self.x_in(((table - mean) / std).clamp(-10, 10))
        x = torch.cat([x[:, :split] + self.y_in(label[:, :split]), x[:, split:]], 1)
        for layer in self.layers:
            x = layer(x, split)
        return self.head(x[:, split:])


def main():
    cfg, device = get_config()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    prior = StructuralPrior(cfg.prior, device)
    model = PriorFittedNet(cfg).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-5)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.2, total_iters=3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.updates)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, decay], milestones=[3])
    began = time.time()
    for update in range(cfg.updates):
        total, hits, seen = 0.0, 0, 0
        opt.zero_grad()
        for _ in range(cfg.accumulate):
            table, label = prior.sample(cfg.datasets)
            # where the context ends differs from batch to batch
            low = int(cfg.prior.rows * 0.3)
            split = int(np.random.randint(low, int(cfg.prior.rows * 0.9)))
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(table, label, split)
            target = label[:, split:]
            loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten())
            (loss / cfg.accumulate).backward()
            total += loss.item() / cfg.accumulate
            hits += (logits.argmax(-1) == target).sum().item()
            seen += target.numel()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        print(f"step {update} loss {total:.6f} accuracy {hits / seen:.3f}", flush=True)
    print(f"finished in {time.time() - began:.1f} s")


if __name__ == "__main__":
    main()
