"""A perceptron on random numbers; its memory grows with the square of its width. Prints its loss,
and with --bytes what the card gives up at the end, if nobody else is on it.
"""

import argparse
import json
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int)
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--bytes", action="store_true")
a = parser.parse_args()
torch.manual_seed(0)
with torch.device("cuda"):
    layers = [nn.Linear(a.width, a.width) for _ in range(4)]
model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
for step in range(a.steps):
    x = torch.randn(64, a.width, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.1)  # what a loader takes
    if step % 20 == 19:
        print(json.dumps({"loss": loss.item(), "step": step}), flush=True)
if a.bytes:
    free, total = torch.cuda.mem_get_info()
    print(total - free)
