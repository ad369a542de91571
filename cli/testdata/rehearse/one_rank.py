"""DistributedDataParallel as torchrun starts it, with one rank."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
model = DistributedDataParallel(model, device_ids=[0])
data = TensorDataset(torch.randn(256, 1024))
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), num_workers=2, pin_memory=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    loss = model(x.cuda(non_blocking=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
