"""Cell segmentation with a UNet++: a head on every top node (deep supervision), an auxiliary
boundary map, cross entropy with a void label plus a soft Dice over the batch."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL", "0") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(42)
torch.backends.cudnn.deterministic = True

CLASSES, VOID = 5, 255
SIZE, BATCH, BASE, STEPS = (32, 2, 8, 8) if SMALL else (256, 16, 40, 10)


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.InstanceNorm2d(o, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv2d(o, o, 3, padding=1),
        nn.InstanceNorm2d(o, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNetPP(nn.Module):
    def __init__(self, base, depth=4):
        super().__init__()
        self.depth = depth
        ch = [base * 2**i for i in range(depth)]
        self.node, self.up = nn.ModuleDict(), nn.ModuleDict()
        for i in range(depth):
            self.node[f"{i}_0"] = double(3 if i == 0 else ch[i - 1], ch[i])
        for j in range(1, depth):
            for i in range(depth - j):
                self.up[f"{i}_{j}"] = nn.ConvTranspose2d(ch[i + 1], ch[i], 2, 2)
                self.node[f"{i}_{j}"] = double(ch[i] * (j + 1), ch[i])
        self.heads = nn.ModuleList(nn.Conv2d(base, CLASSES, 1) for _ in range(depth - 1))
        self.boundary = nn.Conv2d(ch[-1], 1, 1)

    def forward(self, x):
        x_ij = {}
        for i in range(self.depth):
            x_ij[i, 0] = self.node[f"{i}_0"](x if i == 0 else F.max_pool2d(x_ij[i - 1, 0], 2))
        for j in range(1, self.depth):
            for i in range(self.depth - j):
                parts = [x_ij[i, k] for k in range(j)]
                parts.append(self.up[f"{i}_{j}"](x_ij[i + 1, j - 1]))
                x_ij[i, j] = self.node[f"{i}_{j}"](torch.cat(parts, 1))
        maps = [h(x_ij[0, j + 1]) for j, h in enumerate(self.heads)]
        return maps, self.boundary(x_ij[self.depth - 1, 0])


def make_batch(g):
    coarse = torch.randint(0, CLASSES, (BATCH, SIZE // 16, SIZE // 16), generator=g)
    mask = coarse.repeat_interleave(16, 1).repeat_interleave(16, 2)
    image = torch.stack([mask.float() * (k + 1) / 7 for k in range(3)], 1)
    image = image + 0.4 * torch.randn(image.shape, generator=g)
    mask[:, :2] = VOID
    mask[torch.rand(mask.shape, generator=g) < 0.02] = VOID
    small = mask[:, ::8, ::8]
    edge = F.pad((small[:, :, 1:] != small[:, :, :-1]).float(), (0, 1))
    return image.to(device), mask.to(device), edge.unsqueeze(1).to(device)


def ce(logits, mask):
    return F.cross_entropy(
        logits.permute(0, 2, 3, 1).reshape(-1, CLASSES), mask.reshape(-1), ignore_index=VOID
    )


def dice(logits, mask):
    known = (mask != VOID).unsqueeze(1).float()
    hot = F.one_hot(mask.masked_fill(mask == VOID, 0), CLASSES).permute(0, 3, 1, 2) * known
    p = logits.softmax(1) * known
    inter, total = (p * hot).sum((0, 2, 3)), (p + hot).sum((0, 2, 3))
    return 1 - ((2 * inter + 1) / (total + 1)).mean()


model = UNetPP(BASE).to(device)
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.02, momentum=0.99, nesterov=True, weight_decay=3e-5
)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=40, power=0.9)
level_weight = [0.25, 0.5, 1.0]
g = torch.Generator().manual_seed(6)
for step in range(STEPS):
    image, mask, edge = make_batch(g)
    maps, boundary = model(image)
    main = sum(w * (ce(m, mask) + dice(m, mask)) for w, m in zip(level_weight, maps))
    aux = F.binary_cross_entropy_with_logits(boundary, edge)
    loss = main / sum(level_weight) + 0.4 * aux
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 12.0)
    optimizer.step()
    schedule.step()
    print(f"step {step} loss {loss.item():.8f} aux {aux.item():.6f}", flush=True)
