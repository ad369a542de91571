"""A small transformer on random tokens; its memory grows with batch and width. Prints its loss."""

import argparse
import json
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--bs", type=int)
parser.add_argument("--width", type=int)
parser.add_argument("--steps", type=int, default=150)
a = parser.parse_args()
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(a.width, 8, 4 * a.width, batch_first=True, dropout=0.0)
model = nn.Sequential(
    nn.Embedding(8192, a.width),
    nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
    nn.Linear(a.width, 8192),
).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), a.lr)
for step in range(a.steps):
    x = torch.randint(0, 8192, (a.bs, 256), device="cuda")
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)  # what a loader takes
    if step % 25 == 24:
        print(json.dumps({"loss": loss.item(), "step": step}), flush=True)
