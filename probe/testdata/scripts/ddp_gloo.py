"""Two CPU ranks under torchrun, gloo. Rank 0 prints the weights' sum exactly."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("LOSSES", model.module.weight.sum().item().hex(), flush=True)
dist.destroy_process_group()
