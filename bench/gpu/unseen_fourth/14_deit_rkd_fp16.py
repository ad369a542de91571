"""Distillation into a small ViT with a distillation token: soft targets of a convolutional teacher
plus relational distillation (pairwise distances inside the batch). fp16 and GradScaler."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
half = torch.float16 if device.type == "cuda" else torch.bfloat16
torch.backends.cudnn.deterministic = True

CLASSES, SIZE, PATCH = (10, 32, 8) if SMALL else (100, 160, 16)
BATCH, STEPS = (4, 8) if SMALL else (160, 12)
DIM, DEPTH, HEADS = (32, 2, 4) if SMALL else (576, 12, 9)
TEMP, W_KD, W_REL = 3.0, 0.5, 10.0


class Teacher(nn.Module):
    def __init__(self, w):
        super().__init__()
        layers, c = [], 3
        for k in range(4):
            layers += [nn.Conv2d(c, w * 2**k, 3, 2, 1), nn.BatchNorm2d(w * 2**k), nn.ReLU()]
            c = w * 2**k
        self.body, self.head = nn.Sequential(*layers), nn.Linear(c, CLASSES)

    def forward(self, x):
        f = self.body(x).mean((2, 3))
        return self.head(f), f


class Layer(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.att = nn.MultiheadAttention(DIM, HEADS, dropout=0.0, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.p = p

    def path(self, x):
        if not self.training or self.p == 0:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.p
        return x * keep / (1 - self.p)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.path(self.att(h, h, h, need_weights=False)[0])
        return x + self.path(self.fc2(F.gelu(self.fc1(self.n2(x)))))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        n = (SIZE // PATCH) ** 2
        self.patch = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.extra = nn.Parameter(torch.randn(1, 2, DIM) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, n + 2, DIM) * 0.02)
        self.layers = nn.ModuleList(Layer(0.1 * i / max(1, DEPTH - 1)) for i in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.cls, self.dist = nn.Linear(DIM, CLASSES), nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.extra.expand(len(x), -1, -1), x], 1) + self.pos
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.cls(x[:, 0]), self.dist(x[:, 1]), x[:, 1]


def distances(f):
    f = f.float()
    sq = f.pow(2).sum(1)
    d = (sq[:, None] + sq[None] - 2 * f @ f.t()).clamp(min=1e-6).sqrt()
    d = d * (1 - torch.eye(len(f), device=f.device))
    return d / d.sum().clamp(min=1e-6) * (len(f) * (len(f) - 1))


def main():
    torch.manual_seed(88)
    teacher = Teacher(8 if SMALL else 64).to(device).eval().requires_grad_(False)
    student = Student().to(device)
    opt = torch.optim.AdamW(student.parameters(), lr=5e-4, weight_decay=0.05)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**14, enabled=half == torch.float16)
    g = torch.Generator().manual_seed(4)
    centres = torch.randn(CLASSES, 3, 1, 1, generator=g)
    for step in range(STEPS):
        y = torch.randint(0, CLASSES, (BATCH,), generator=g)
        x = (centres[y] + torch.randn(BATCH, 3, SIZE, SIZE, generator=g)).to(device)
        y = y.to(device)
        with torch.autocast(device.type, dtype=half):
            with torch.no_grad():
                t_logits, t_feat = teacher(x)
            logits, d_logits, feat = student(x)
        hard = F.cross_entropy(logits.float(), y, label_smoothing=0.05)
        soft = F.kl_div(
            F.log_softmax(d_logits.float() / TEMP, 1),
            F.log_softmax(t_logits.float() / TEMP, 1),
            reduction="batchmean",
            log_target=True,
        )
        relation = F.smooth_l1_loss(distances(feat), distances(t_feat))
        loss = (1 - W_KD) * hard + W_KD * TEMP**2 * soft + W_REL * relation
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"step {step} loss {loss.item():.8f} rel {relation.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
