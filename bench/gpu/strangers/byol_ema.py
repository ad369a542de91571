# Self-supervision without negatives: an online and a slowly moving target network, two views, the
# loss both ways, batch norm in the heads, momentum updated after each step.
# tiny: --arch resnet18 --batch 4 --size 32 --device cpu
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

ap = argparse.ArgumentParser()
ap.add_argument("--arch", default="resnet50")
ap.add_argument("--batch", type=int, default=64)
ap.add_argument("--size", type=int, default=128)
ap.add_argument("--device", default="cuda")
opt = ap.parse_args()
torch.manual_seed(6)
dev = torch.device(opt.device)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, o))


backbone = getattr(torchvision.models, opt.arch)(weights=None)
width = backbone.fc.in_features
backbone.fc = mlp(width, 256)
online = backbone.to(dev)
predictor = mlp(256, 256).to(dev)
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.SGD(
    [*online.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-6
)


def agree(p, z):
    return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1).mean()


rng = torch.Generator().manual_seed(12)
for step in range(10):
    x = torch.rand(opt.batch, 3, opt.size, opt.size, generator=rng)
    one, two = x.flip(3).to(dev), (x + 0.1 * torch.randn(x.shape, generator=rng)).to(dev)
    p1, p2 = predictor(online(one)), predictor(online(two))
    with torch.no_grad():
        z1, z2 = target(one), target(two)
    loss = agree(p1, z2) + agree(p2, z1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for t, o in zip(target.parameters(), online.parameters()):
            t.lerp_(o, 0.01)
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
