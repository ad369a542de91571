# Time series: an nn.Transformer (encoder and decoder) with batch_first=False called with src, tgt
# and a causal mask, MSE with reduction sum / count, param groups, AdamW, OneCycleLR, a dataclass
# out. tiny: --dim 16 --layers 1 --batch 6 --past 12 --future 6 --device cpu --steps 4
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--dim", type=int, default=384)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--batch", type=int, default=96)
parser.add_argument("--past", type=int, default=336)
parser.add_argument("--future", type=int, default=96)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(21)


@dataclass
class Forecast:
    mean: torch.Tensor
    hidden: torch.Tensor


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift_src, self.lift_tgt = nn.Linear(7, args.dim), nn.Linear(7, args.dim)
        self.time = nn.Parameter(torch.randn(args.past + args.future, 1, args.dim) * 0.02)
        self.core = nn.Transformer(args.dim, 4, args.layers, args.layers, 4 * args.dim, 0.0)
        self.out = nn.Linear(args.dim, 7)

    def forward(self, src, tgt, tgt_mask):
        h = self.core(
            self.lift_src(src) + self.time[: len(src)],
            self.lift_tgt(tgt) + self.time[: len(tgt)],
            tgt_mask=tgt_mask,
        )
        return Forecast(self.out(h), h.mean(-1))


model = Forecaster().to(args.device)
optimizer = torch.optim.AdamW(
    [
        {"params": model.core.parameters(), "lr": 1e-5},
        {
            "params": [p for n, p in model.named_parameters() if not n.startswith("core")],
            "lr": 1e-4,
        },
    ]
)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=[2e-5, 1e-4], total_steps=args.steps + 1
)
criterion = nn.MSELoss(reduction="sum")
mask = nn.Transformer.generate_square_subsequent_mask(args.future).to(args.device)
g = torch.Generator().manual_seed(6)
for step in range(args.steps):
    series = torch.cumsum(
        torch.randn(args.past + args.future + 1, args.batch, 7, generator=g) * 0.1, 0
    ).to(args.device)
    src, tgt, want = series[: args.past], series[args.past : -1], series[args.past + 1 :]
    out = model(src, tgt, tgt_mask=mask)
    loss = criterion(out.mean, want) / want.numel() + 1e-4 * out.hidden.pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    model.zero_grad()
    print(
        "step %d loss %.9g mae %.4f" % (step, loss.item(), (out.mean - want).abs().mean().item()),
        flush=True,
    )
