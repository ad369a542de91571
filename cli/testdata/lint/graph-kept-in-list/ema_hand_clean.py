import torch
from torch import nn
from world import loader, make_unet

unet = make_unet().cuda()
opt = torch.optim.AdamW(unet.parameters(), 1e-4)
averages = [p.detach().clone() for p in unet.parameters()]


def blend(rate):
    for i, p in enumerate(unet.parameters()):
        averages[i] = averages[i] * rate + p.detach() * (1 - rate)


for x, noise, t in loader:
    loss = (unet(x.cuda(), t.cuda()) - noise.cuda()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    blend(0.999)
