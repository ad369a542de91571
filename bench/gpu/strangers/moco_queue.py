# Momentum contrast: a query encoder with gradients, a key encoder moved by momentum, a queue of
# negatives in a buffer, shuffled keys.
# tiny: --batch 6 --size 32 --queue 24 --arch resnet18 --device cpu
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

ap = argparse.ArgumentParser()
ap.add_argument("--batch", type=int, default=96)
ap.add_argument("--size", type=int, default=160)
ap.add_argument("--queue", type=int, default=4096)
ap.add_argument("--arch", default="resnet50")
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(8)


class MoCo(nn.Module):
    def __init__(self, m=0.99, t=0.2, dim=128):
        super().__init__()
        self.m, self.t = m, t
        self.q = torchvision.models.get_model(a.arch, weights=None, num_classes=dim)
        self.k = copy.deepcopy(self.q)
        for p in self.k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, a.queue), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _keys(self, x):
        for p, k in zip(self.q.parameters(), self.k.parameters()):
            k.data = k.data * self.m + p.data * (1 - self.m)
        return F.normalize(self.k(x), dim=1)

    @torch.no_grad()
    def _enqueue(self, keys):
        p = int(self.ptr)
        room = min(len(keys), a.queue - p)
        self.queue[:, p : p + room] = keys[:room].t()
        self.ptr[0] = (p + room) % a.queue

    def forward(self, im_q, im_k):
        q = F.normalize(self.q(im_q), dim=1)
        k = self._keys(im_k)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().detach()
        logits = torch.cat([pos, neg], 1) / self.t
        self._enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device)


model = MoCo().to(a.device)
opt = torch.optim.SGD(model.q.parameters(), 0.003, momentum=0.9, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss()
rng = torch.Generator().manual_seed(0)
for i in range(12):
    x = torch.rand(a.batch, 3, a.size, a.size, generator=rng)
    noise = torch.randn(x.shape, generator=rng)
    out, target = model((x + 0.1 * noise).to(a.device), (x - 0.1 * noise).flip(3).to(a.device))
    loss = criterion(out, target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (i, loss.item()), flush=True)
