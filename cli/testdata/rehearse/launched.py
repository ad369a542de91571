"""What `accelerate launch` decides reaches the script: precision, and how the model is sharded."""

import os

import torch
from accelerate import Accelerator

accelerator = Accelerator()
assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
assert accelerator.mixed_precision == "bf16"
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)])
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
assert type(model).__name__ == "FullyShardedDataParallel"
for _ in range(10):
    accelerator.backward(model(torch.randn(64, 1024, device=accelerator.device)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
