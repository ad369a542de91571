"""DDP with find_unused_parameters: a trunk with two heads of which each step trains one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(17)


class Stage(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.grow = nn.GroupNorm(4, c), nn.Conv2d(c, 3 * c, 1)
        self.back = nn.Conv2d(3 * c, c, 3, padding=1)

    def forward(self, x):
        return x + self.back(nn.functional.gelu(self.grow(self.norm(x))))


class TwoHeads(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.enter = nn.Conv2d(3, c, 3, padding=1)
        self.stages = nn.ModuleList(Stage(c) for _ in range(5))
        self.heads = nn.ModuleDict({"kind": nn.Linear(c, 8), "place": nn.Linear(c, 2)})

    def forward(self, x, task):
        x = self.enter(x)
        for stage in self.stages:
            x = stage(x)
        return self.heads[task](x.mean((2, 3)))


model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
random = torch.Generator().manual_seed(rank)
for step in range(4):
    x = torch.rand(24, 3, 40, 40, generator=random)
    optimizer.zero_grad()
    if step % 2:
        loss = nn.functional.mse_loss(model(x, "place"), x.mean((2, 3))[:, :2])
    else:
        target = torch.randint(0, 8, (24,), generator=random)
        loss = nn.functional.cross_entropy(model(x, "kind"), target)
    loss.backward()
    optimizer.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    if rank == 0:
        print("step %d loss %.8g" % (step, shown.item() / 2), flush=True)
dist.destroy_process_group()
