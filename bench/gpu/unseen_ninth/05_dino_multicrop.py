"""Self-distillation without labels (DINO): multi-crop student, EMA teacher, centred targets."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"

if device == "cpu":
    DIM, DEPTH, HEADS, OUT, BATCH, STEPS = 32, 2, 2, 64, 4, 8
    GLOBAL, LOCAL, N_LOCAL, PATCH = 32, 16, 3, 8
else:
    DIM, DEPTH, HEADS, OUT, BATCH, STEPS = 384, 8, 6, 8192, 48, 12
    GLOBAL, LOCAL, N_LOCAL, PATCH = 128, 48, 6, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, DIM * 3)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0))
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


def drop_path(x, p, training):
    if p == 0.0 or not training:
        return x
    keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= p
    return x * keep / (1 - p)


class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        x = x + drop_path(self.attn(self.norm1(x)), self.p, self.training)
        return x + drop_path(self.mlp(self.norm2(x)), self.p, self.training)


class ViT(nn.Module):
    def __init__(self, drop=0.1):
        super().__init__()
        side = GLOBAL // PATCH
        self.patch = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos = nn.Parameter(torch.randn(1, DIM, side, side) * 0.02)
        self.blocks = nn.Sequential(*[Block(drop * i / DEPTH) for i in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)

    def forward(self, images):
        x = self.patch(images)
        pos = self.pos
        if x.shape[-2:] != pos.shape[-2:]:
            pos = F.interpolate(pos, size=x.shape[-2:], mode="bicubic", align_corners=False)
        x = (x + pos).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        return self.norm(self.blocks(x))[:, 0]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(DIM, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 256)
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(256, OUT, bias=False))

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x), dim=-1))


class DINOLoss(nn.Module):
    def __init__(self, student_temp=0.1, teacher_temp=0.04, momentum=0.9):
        super().__init__()
        self.ts, self.tt, self.momentum = student_temp, teacher_temp, momentum
        self.register_buffer("center", torch.zeros(1, OUT))

    def forward(self, student, teacher):
        student = (student.float() / self.ts).chunk(2 + N_LOCAL)
        target = ((teacher.float() - self.center) / self.tt).softmax(-1).chunk(2)
        terms = []
        for i, t in enumerate(target):
            for j, s in enumerate(student):
                if i != j:
                    terms.append(-(t * F.log_softmax(s, dim=-1)).sum(-1).mean())
        self.center.lerp_(teacher.float().mean(0, keepdim=True), 1 - self.momentum)
        return torch.stack(terms).mean()


def random_crop(images, size):
    scale = images.shape[-1] - size
    top, left = torch.randint(0, scale + 1, (2,)).tolist()
    crop = images[..., top : top + size, left : left + size]
    if torch.rand(1) < 0.5:
        crop = crop.flip(-1)
    return crop * (0.8 + 0.4 * torch.rand(len(crop), 3, 1, 1, device=crop.device))


student = nn.Sequential(ViT(), Head()).to(device)
teacher = copy.deepcopy(student).requires_grad_(False).eval()
criterion = DINOLoss().to(device)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, weight_decay=0.04)
scaler = torch.amp.GradScaler(device, enabled=device == "cuda")

for step in range(STEPS):
    ramp = 0.5 * (1 - math.cos(math.pi * step / STEPS))
    optimizer.param_groups[0]["weight_decay"] = 0.04 + 0.36 * ramp
    base = F.interpolate(torch.randn(BATCH, 3, 12, 12, device=device), GLOBAL + GLOBAL // 4)
    crops = [random_crop(base, GLOBAL) for _ in range(2)]
    crops_local = [random_crop(base, LOCAL) for _ in range(N_LOCAL)]
    with torch.autocast(device, dtype=torch.float16, enabled=device == "cuda"):
        with torch.no_grad():
            targets = teacher(torch.cat(crops))
        outputs = torch.cat([student(torch.cat(crops)), student(torch.cat(crops_local))])
        loss = criterion(outputs, targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(student.parameters(), 3.0)
    scaler.step(optimizer)
    scaler.update()
    momentum = 1 - 0.004 * (math.cos(math.pi * step / STEPS) + 1) / 2
    with torch.no_grad():
        for p, q in zip(student.parameters(), teacher.parameters(), strict=True):
            q.lerp_(p, 1 - momentum)
    print(f"step {step} loss {loss.item():.6f}", flush=True)
