import torch
from torch import nn
from world import loader

model = nn.Transformer(512).cuda()
opt = torch.optim.AdamW(model.parameters())
kept = []
for epoch in range(100):
    for src, tgt in loader:
        loss = model(src.cuda(), tgt.cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    kept.append({k: v.clone() for k, v in model.state_dict().items()})  # expect: model-copies-kept
