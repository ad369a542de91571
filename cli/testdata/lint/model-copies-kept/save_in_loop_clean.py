import torch
from torch import nn
from world import loader

model = nn.Transformer(512).cuda()
opt = torch.optim.AdamW(model.parameters())

for epoch in range(100):
    for src, tgt in loader:
        loss = model(src.cuda(), tgt.cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    torch.save(model.state_dict(), f"epoch{epoch}.pt")
