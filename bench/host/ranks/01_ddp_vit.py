"""DDP over gloo: a small vision transformer with gradient accumulation under no_sync."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class ViT(nn.Module):
    def __init__(self, d=128, depth=5):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.pos = nn.Parameter(torch.zeros(1, 64, d))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 512, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(d, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


model = DistributedDataParallel(ViT())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
random = torch.Generator().manual_seed(100 + rank)
for step in range(3):
    for micro in range(2):
        x = torch.randn(64, 3, 32, 32, generator=random)
        y = torch.randint(0, 10, (64,), generator=random)
        with model.no_sync() if micro == 0 else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(model(x), y) / 2
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    if rank == 0:
        print("step %d loss %.8g" % (step, shown.item()), flush=True)
dist.destroy_process_group()
