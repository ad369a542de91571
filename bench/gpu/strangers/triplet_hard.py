"""Person search: a ResNet without a head, batch-hard triplets mined over the whole batch, a centre
loss with its own optimizer."""

# tiny: --ids 2 --each 2 --size 32 --net resnet18 --device cpu
import argparse

import torch
import torchvision
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--ids", type=int, default=16)
ap.add_argument("--each", type=int, default=6)
ap.add_argument("--size", type=int, default=160)
ap.add_argument("--net", default="resnet50")
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(9)
net = getattr(torchvision.models, a.net)()
width = net.fc.in_features
net.fc = nn.Identity()
net = net.to(a.device)
centres = nn.Parameter(torch.randn(a.ids, width, device=a.device) * 0.1)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
copt = torch.optim.SGD([centres], lr=0.5)
g = torch.Generator().manual_seed(3)


def batch_hard(f, ids, margin=0.3):
    dist = torch.cdist(f, f)
    same = ids[:, None] == ids[None]
    far = (dist * same).max(1).values
    near = dist.masked_fill(same, float("inf")).min(1).values
    return torch.relu(far - near + margin).mean()


ids = torch.arange(a.ids).repeat_interleave(a.each).to(a.device)
for step in range(12):
    x = torch.randn(len(ids), 3, 2 * a.size, a.size, generator=g).to(a.device)
    f = net(x)
    loss = batch_hard(f, ids) + 5e-4 * (f - centres[ids]).square().sum(1).mean()
    opt.zero_grad()
    copt.zero_grad()
    loss.backward()
    opt.step()
    copt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
