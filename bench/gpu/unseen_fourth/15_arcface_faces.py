"""Face embeddings with ArcFace: IR-style ResNet, many identities, balanced P x K batches."""

import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

SMALL = os.environ.get("SMALL") == "1"
IDS, DIM, SIZE = (50, 16, 32) if SMALL else (120000, 512, 112)
P, K, STEPS = (3, 2, 8) if SMALL else (32, 4, 12)


class Faces(Dataset):
    def __getitem__(self, key):
        who, shot = key
        g = torch.Generator().manual_seed(who * 1000 + shot)
        coarse = torch.Generator().manual_seed(who)
        face = torch.randn(3, SIZE // 8, SIZE // 8, generator=coarse)
        face = face.repeat_interleave(8, 1).repeat_interleave(8, 2)
        return face + 0.3 * torch.randn(3, SIZE, SIZE, generator=g), who


class PKSampler(Sampler):
    def __iter__(self):
        g = torch.Generator().manual_seed(12)
        for _ in range(STEPS):
            people = torch.randint(0, IDS, (P,), generator=g).tolist()
            yield [(who, shot) for who in people for shot in range(K)]

    def __len__(self):
        return STEPS


class IRBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.res = nn.Sequential(
            nn.BatchNorm2d(i),
            nn.Conv2d(i, o, 3, 1, 1, bias=False),
            nn.BatchNorm2d(o),
            nn.PReLU(o),
            nn.Conv2d(o, o, 3, stride, 1, bias=False),
            nn.BatchNorm2d(o),
        )
        if stride == 1 and i == o:
            self.short = nn.Identity()
        else:
            self.short = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        return self.res(x) + self.short(x)


class Backbone(nn.Module):
    def __init__(self, plan):
        super().__init__()
        c = plan[0][0]
        layers = [nn.Conv2d(3, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c), nn.PReLU(c)]
        for width, n in plan:
            for k in range(n):
                layers.append(IRBlock(c, width, 2 if k == 0 else 1))
                c = width
        side = SIZE // 2 ** len(plan)
        self.body = nn.Sequential(*layers)
        self.out = nn.Sequential(
            nn.BatchNorm2d(c),
            nn.Dropout(0.4),
            nn.Flatten(),
            nn.Linear(c * side * side, DIM),
            nn.BatchNorm1d(DIM, affine=False),
        )

    def forward(self, x):
        return self.out(self.body(x))


class ArcFace(nn.Module):
    def __init__(self, s=64.0, m=0.5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(IDS, DIM) * 0.01)
        self.s, self.m = s, m

    def forward(self, emb, label):
        cos = F.linear(F.normalize(emb), F.normalize(self.weight)).clamp(-1 + 1e-6, 1 - 1e-6)
        target = cos.gather(1, label[:, None])
        sin = (1 - target.pow(2)).sqrt()
        moved = target * math.cos(self.m) - sin * math.sin(self.m)
        moved = torch.where(target > math.cos(math.pi - self.m), moved, target - self.m * 0.48)
        logits = cos.scatter(1, label[:, None], moved)
        return F.cross_entropy(self.s * logits, label)


def main():
    torch.manual_seed(6)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = [(8, 1), (16, 1)] if SMALL else [(64, 3), (128, 4), (256, 6), (512, 3)]
    net, head = Backbone(plan).to(device), ArcFace().to(device)
    opt = torch.optim.SGD(
        [{"params": net.parameters()}, {"params": head.parameters(), "weight_decay": 0.0}],
        lr=0.02,
        momentum=0.9,
        weight_decay=5e-4,
    )
    loader = DataLoader(Faces(), batch_sampler=PKSampler())
    for step, (img, who) in enumerate(loader):
        loss = head(net(img.to(device)), who.to(device))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        print(f"step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
