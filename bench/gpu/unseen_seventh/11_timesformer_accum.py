"""Action recognition with divided space-time attention (TimeSformer), micro-batched clips."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()


@dataclass
class Args:
    frames: int = 8 if CUDA else 2
    size: int = 224 if CUDA else 32
    patch: int = 16
    dim: int = 768 if CUDA else 32
    depth: int = 8 if CUDA else 2
    heads: int = 12 if CUDA else 2
    classes: int = 174
    micro_batch: int = 8 if CUDA else 2
    accumulate: int = 2
    updates: int = 6 if CUDA else 2
    lr: float = 0.01
    label_smoothing: float = 0.1


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.h, c // self.h).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * (c // self.h) ** -0.5
        x = attn.softmax(-1) @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class SpaceTimeBlock(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.norm_t, self.norm_s, self.norm_m = (nn.LayerNorm(a.dim) for _ in range(3))
        self.time, self.space = Attention(a.dim, a.heads), Attention(a.dim, a.heads)
        self.time_fc = nn.Linear(a.dim, a.dim)
        self.mlp = nn.Sequential(
            nn.Linear(a.dim, 4 * a.dim), nn.GELU(), nn.Linear(4 * a.dim, a.dim)
        )

    def forward(self, x):
        b, t, n, c = x.shape
        y = self.norm_t(x).transpose(1, 2).reshape(b * n, t, c)
        y = self.time_fc(self.time(y)).view(b, n, t, c).transpose(1, 2)
        x = x + y
        x = x + self.space(self.norm_s(x).flatten(0, 1)).view(b, t, n, c)
        return x + self.mlp(self.norm_m(x))


class TimeSformer(nn.Module):
    def __init__(self, a):
        super().__init__()
        n = (a.size // a.patch) ** 2
        self.embed = nn.Conv2d(3, a.dim, a.patch, a.patch)
        self.pos = nn.Parameter(torch.zeros(1, 1, n, a.dim))
        self.tpos = nn.Parameter(torch.zeros(1, a.frames, 1, a.dim))
        nn.init.trunc_normal_(self.pos, std=0.02)
        nn.init.trunc_normal_(self.tpos, std=0.02)
        self.blocks = nn.Sequential(*[SpaceTimeBlock(a) for _ in range(a.depth)])
        self.norm = nn.LayerNorm(a.dim)
        self.fc = nn.Linear(a.dim, a.classes)

    def forward(self, video):
        b, t = video.shape[:2]
        x = self.embed(video.flatten(0, 1)).flatten(2).transpose(1, 2)
        x = x.reshape(b, t, x.size(1), -1) + self.pos + self.tpos
        x = self.norm(self.blocks(x))
        return self.fc(x.mean((1, 2)))


def clips(a, seed):
    """Endless micro-batches; the class decides how fast a gradient moves over the frames."""
    g = torch.Generator().manual_seed(seed)
    ramp = torch.linspace(0, 1, a.size).view(1, 1, 1, 1, a.size)
    when = torch.arange(a.frames).view(1, a.frames, 1, 1, 1)
    while True:
        y = torch.randint(0, a.classes, (a.micro_batch,), generator=g)
        noise = torch.randn(a.micro_batch, a.frames, 3, a.size, a.size, generator=g)
        speed = y.view(-1, 1, 1, 1, 1) / a.classes
        yield 0.3 * noise + torch.sin(6.0 * (ramp + speed * when)), y


def train_one_update(model, optimizer, stream, a, device):
    optimizer.zero_grad()
    running = 0.0
    for _ in range(a.accumulate):
        video, y = next(stream)
        video, y = video.to(device), y.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=CUDA):
            logits = model(video)
            loss = F.cross_entropy(logits, y, label_smoothing=a.label_smoothing)
        (loss / a.accumulate).backward()
        running += loss.item() / a.accumulate
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return running, float(norm)


def main(a=Args()):
    device = "cuda" if CUDA else "cpu"
    torch.manual_seed(400)
    model = TimeSformer(a).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=a.lr, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.1)
    stream = clips(a, 17)
    for update in range(a.updates):
        loss, norm = train_one_update(model, optimizer, stream, a, device)
        scheduler.step()
        print(f"update {update} loss {loss:.8f} grad {norm:.3f}", flush=True)


if __name__ == "__main__":
    main()
