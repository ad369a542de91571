from collections import deque

import torch
from torch import nn
from store import stream

model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1)).cuda()
opt = torch.optim.Adam(model.parameters())
window = deque(maxlen=100)
for i, (x, y) in enumerate(stream):
    loss = nn.functional.huber_loss(model(x.cuda()), y.cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
    window.append(loss)
    if i % 100 == 0:
        print(sum(v.item() for v in window) / len(window))
