from collections import defaultdict

import torch
from torch import nn

model = nn.Linear(8, 8).to("cuda")


@torch.inference_mode()
def embed(loader):
    by_label = defaultdict(list)
    for x, y in loader:
        feats = model(x.to("cuda"))
        for f, label in zip(feats, y):
            by_label[int(label)].append(f)  # hint: outputs-kept-on-card
    return by_label
