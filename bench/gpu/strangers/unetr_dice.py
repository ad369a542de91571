# Segmentation by a transformer encoder whose inner states feed a convolutional decoder; Dice loss
# over the whole batch, SGD with Nesterov momentum and a polynomial schedule.
# tiny: --dim 16 --depth 4 --batch 4 --size 32 --device cpu
import argparse

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--dim", type=int, default=384)
ap.add_argument("--depth", type=int, default=12)
ap.add_argument("--batch", type=int, default=24)
ap.add_argument("--size", type=int, default=256)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(3)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.att(h, h, h, need_weights=False)[0]
        return x + self.ff(self.n2(x))


def up(i, o):
    return nn.Sequential(
        nn.ConvTranspose2d(i, o, 2, 2), nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU()
    )


class Unetr(nn.Module):
    def __init__(self, d, depth):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 8, 8)
        self.pos = nn.Parameter(torch.randn(1, (a.size // 8) ** 2, d) * 0.02)
        self.layers = nn.ModuleList(Layer(d) for _ in range(depth))
        self.taps = [depth // 2 - 1, depth - 1]
        self.up1, self.side = up(d, d // 2), up(d, d // 2)
        self.up2, self.up3 = up(d, d // 4), up(d // 4, d // 4)
        self.head = nn.Conv2d(d // 4, 4, 1)

    def forward(self, x):
        h = self.patch(x)
        side = h.shape[2:]
        h = h.flatten(2).transpose(1, 2) + self.pos
        seen = []
        for i, layer in enumerate(self.layers):
            h = layer(h)
            if i in self.taps:
                seen.append(h.transpose(1, 2).unflatten(2, side))
        y = torch.cat([self.up1(seen[1]), self.side(seen[0])], 1)
        return self.head(self.up3(self.up2(y)))


def dice(logits, target):
    p = logits.softmax(1)
    hot = nn.functional.one_hot(target, 4).permute(0, 3, 1, 2).float()
    inter, total = (p * hot).sum((0, 2, 3)), (p + hot).sum((0, 2, 3))
    return 1 - ((2 * inter + 1) / (total + 1)).mean()


net = Unetr(a.dim, a.depth).to(a.device)
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=20, power=0.9)
g = torch.Generator().manual_seed(8)
for step in range(12):
    x = torch.randn(a.batch, 3, a.size, a.size, generator=g).to(a.device)
    y = torch.randint(0, 4, (a.batch, a.size, a.size), generator=g).to(a.device)
    loss = dice(net(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
