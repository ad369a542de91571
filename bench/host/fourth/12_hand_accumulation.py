"""Accumulation by hand over parts of uneven size, each weighed by its samples; clipping and a
schedule.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(42)
torch.set_num_threads(1)


class Conv(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 7, padding=3, groups=width),
                nn.GroupNorm(1, width),
                nn.Conv2d(width, 3 * width, 1),
                nn.GELU(),
                nn.Conv2d(3 * width, width, 1),
            )
            for _ in range(6)
        )
        self.head = nn.Linear(width, 20)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


model = Conv()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)
for update in range(2):
    sizes, total = (36, 36, 20), 0.0
    for size in sizes:
        x, y = torch.rand(size, 3, 32, 32), torch.randint(0, 20, (size,))
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1) * size / sum(sizes)
        loss.backward()
        total += loss.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    plan.step()
    print("update %d loss %.8g norm %.7g" % (update, total, norm.item()), flush=True)
