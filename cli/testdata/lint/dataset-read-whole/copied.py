"""Whole data sets that are copied before the first step, and lines of a text that are all kept."""

import json

import numpy as np
import torch

signals = np.load("signals.npy")  # hint: dataset-read-whole
scaled = signals.astype("float32")
centred = scaled - scaled.mean(0)

with open("talks.jsonl") as file:
    talks = [json.loads(line)["text"] for line in file]  # hint: dataset-read-whole
codes = [torch.tensor([ord(c) % 64 for c in talk]) for talk in talks]

bag = torch.nn.EmbeddingBag(64, 2)
line = torch.nn.Linear(centred.shape[1], 2)
optimizer = torch.optim.SGD([*bag.parameters(), *line.parameters()], lr=0.1)
for code in codes:
    optimizer.zero_grad()
    bag(code.unsqueeze(0)).sum().backward()
    optimizer.step()
for begin in range(0, len(centred), 64):
    optimizer.zero_grad()
    line(torch.from_numpy(centred[begin : begin + 64])).sum().backward()
    optimizer.step()
