"""FT-transformer for tables: categorical and numerical columns in a dict, several heads,
GradScaler, OneCycle, clipping, EMA and checkpoints of its own.
"""

# tiny: batch=16 dim=16 blocks=1 numerical=5 categorical=3
import copy
import dataclasses
import logging
import os
import random
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
log = logging.getLogger("train")


@dataclasses.dataclass
class Config:
    batch: int = 2048
    dim: int = 128
    blocks: int = 3
    heads: int = 4
    numerical: int = 40
    categorical: int = 20
    lr: float = 3e-4
    steps: int = 20
    clip: float = 1.0
    amp: bool = False
    seed: int = 2024
    out: str = os.environ.get("FIT_OUT", "ft-out")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    price: torch.Tensor
    clicks: torch.Tensor
    hidden: torch.Tensor = None


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


class Rows(torch.utils.data.Dataset):
    def __init__(self, n, cfg):
        rng = np.random.default_rng(cfg.seed)
        self.num = rng.normal(size=(n, cfg.numerical)).astype(np.float32)
        self.cat = rng.integers(0, 50, size=(n, cfg.categorical))
        self.y = rng.integers(0, 2, size=n)
        self.price = (self.num[:, 0] * 2 + rng.normal(size=n)).astype(np.float32)
        self.clicks = rng.poisson(3, size=n).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {
            "features": {"num": self.num[i], "cat": self.cat[i]},
            "targets": (self.y[i], self.price[i], self.clicks[i]),
        }


class Tokenizer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cfg.numerical, cfg.dim) * 0.02)
        self.bias = nn.Parameter(torch.zeros(cfg.numerical, cfg.dim))
        self.embed = nn.Embedding(50 * cfg.categorical, cfg.dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, cfg.dim))
        self.register_buffer("offsets", torch.arange(cfg.categorical) * 50)

    def forward(self, num, cat):
        return torch.cat(
            [
                self.cls.expand(len(num), -1, -1),
                num[..., None] * self.weight + self.bias,
                self.embed(cat + self.offsets),
            ],
            1,
        )


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.att = nn.MultiheadAttention(cfg.dim, cfg.heads, batch_first=True)
        self.up, self.down = nn.Linear(cfg.dim, cfg.dim * 4), nn.Linear(cfg.dim * 2, cfg.dim)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.att(h, h, h, need_weights=False)[0]
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(a * F.relu(b))


class FTTransformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokenizer = Tokenizer(cfg)
        self.blocks = nn.ModuleDict({f"block_{i}": Block(cfg) for i in range(cfg.blocks)})
        self.heads = nn.ModuleDict(
            {
                k: nn.Sequential(nn.LayerNorm(cfg.dim), nn.ReLU(), nn.Linear(cfg.dim, n))
                for k, n in (("cls", 2), ("price", 1), ("clicks", 1))
            }
        )

    def forward(self, features):
        x = self.tokenizer(**features)
        for block in self.blocks.values():
            x = block(x)
        x = x[:, 0]
        return Output(
            self.heads["cls"](x),
            self.heads["price"](x).squeeze(-1),
            self.heads["clicks"](x).squeeze(-1),
            hidden=x.detach(),
        )


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, y):
        ce = F.cross_entropy(logits, y, reduction="none")
        return ((1 - torch.exp(-ce)) ** self.gamma * ce).mean()


class UncertaintyWeighting(nn.Module):
    """Learnt weights of the three losses: parameters outside of the model."""

    def __init__(self, n):
        super().__init__()
        self.log_var = nn.Parameter(torch.zeros(n))

    def forward(self, losses):
        return sum(torch.exp(-v) * l + v for v, l in zip(self.log_var, losses))


def to_device(x, device):
    if isinstance(x, dict):
        return {k: to_device(v, device) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(to_device(v, device) for v in x)
    return x.to(device, non_blocking=True)


def main():
    cfg = Config()
    for pair in sys.argv[1:]:
        k, v = pair.split("=")
        setattr(cfg, k, type(getattr(cfg, k))(v))
    seed_everything(cfg.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = torch.utils.data.DataLoader(Rows(cfg.batch * cfg.steps, cfg), cfg.batch, shuffle=True)
    model, mtl, focal = (
        FTTransformer(cfg).to(device),
        UncertaintyWeighting(3).to(device),
        FocalLoss(),
    )
    ema = copy.deepcopy(model).eval()
    no_decay = [
        p for n, p in model.named_parameters() if "bias" in n or "tokenizer" in n or ".n" in n
    ]
    ids = {id(p) for p in no_decay}
    opt = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if id(p) not in ids], "weight_decay": 1e-5},
            {"params": no_decay, "weight_decay": 0.0},
            {"params": mtl.parameters(), "lr": 1e-3},
        ],
        lr=cfg.lr,
    )
    sched = torch.optim.lr_scheduler.OneCycleLR(
        opt, max_lr=[cfg.lr, cfg.lr, 1e-3], total_steps=cfg.steps
    )
    scaler = torch.amp.GradScaler(device, enabled=cfg.amp)
    best = float("inf")
    for step, batch in enumerate(loader):
        model.train()
        batch = to_device(batch, device)
        y, price, clicks = batch["targets"]
        with torch.autocast(device, enabled=cfg.amp):
            out = model(batch["features"])
            losses = [
                focal(out.logits, y),
                F.smooth_l1_loss(out.price, price),
                F.poisson_nll_loss(out.clicks, clicks),
            ]
            loss = mtl(losses)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(list(model.parameters()) + list(mtl.parameters()), cfg.clip)
        scaler.step(opt)
        scaler.update()
        sched.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.mul_(0.9).add_(p, alpha=0.1)
        log.info(
            "step %d loss %.6f norm %.4f lr %.2e", step, loss.item(), norm, sched.get_last_lr()[0]
        )
        if step % 10 == 9:
            with torch.no_grad():
                val = F.cross_entropy(ema(batch["features"]).logits, y).item()
            if val < best:
                best = val
                os.makedirs(cfg.out, exist_ok=True)
                torch.save(
                    {
                        "model": model.state_dict(),
                        "ema": ema.state_dict(),
                        "opt": opt.state_dict(),
                        "cfg": dataclasses.asdict(cfg),
                    },
                    os.path.join(cfg.out, "best.pt"),
                )


if __name__ == "__main__":
    main()
