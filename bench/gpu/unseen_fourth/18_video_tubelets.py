"""Action recognition: (2+1)D convolutional stem, then attention divided over space and time, with
gradient reversal on the recording studio (own autograd.Function)."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
FRAMES, SIZE = (4, 32) if SMALL else (16, 112)
BATCH, STEPS = (2, 8) if SMALL else (20, 10)
STEM, DIM, DEPTH, HEADS = (8, 32, 1, 4) if SMALL else (64, 512, 8, 8)
ACTIONS, STUDIOS = 60, 4


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Conv2Plus1(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.space = nn.Conv3d(i, o, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(o, o, (3, 1, 1), 1, (1, 0, 0), bias=False)
        self.n1, self.n2 = nn.GroupNorm(8, o), nn.GroupNorm(8, o)

    def forward(self, x):
        x = F.silu(self.n1(self.space(x)))
        return F.silu(self.n2(self.time(x)))


class Divided(nn.Module):
    """Attention over time at one place, then over the places of one frame."""

    def __init__(self, dim, heads):
        super().__init__()
        self.nt, self.ns, self.nm = (nn.LayerNorm(dim) for _ in range(3))
        self.time = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.space = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        b, t, s, d = x.shape
        h = self.nt(x).transpose(1, 2).reshape(b * s, t, d)
        h = self.time(h, h, h, need_weights=False)[0].view(b, s, t, d)
        x = x + h.transpose(1, 2)
        h = self.ns(x).reshape(b * t, s, d)
        x = x + self.space(h, h, h, need_weights=False)[0].view(b, t, s, d)
        return x + self.mlp(self.nm(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(Conv2Plus1(3, STEM, 2), Conv2Plus1(STEM, STEM * 2, 2))
        self.embed = nn.Conv3d(STEM * 2, DIM, (1, 4, 4), (1, 4, 4))
        side = SIZE // 16
        self.pos_s = nn.Parameter(torch.randn(1, 1, side * side, DIM) * 0.02)
        self.pos_t = nn.Parameter(torch.randn(1, FRAMES, 1, DIM) * 0.02)
        self.blocks = nn.Sequential(*(Divided(DIM, HEADS) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(DIM)
        self.action, self.studio = nn.Linear(DIM, ACTIONS), nn.Linear(DIM, STUDIOS)

    def forward(self, clip, strength):
        x = self.embed(self.stem(clip)).flatten(3).permute(0, 2, 3, 1)
        x = self.blocks(x + self.pos_s + self.pos_t)
        x = self.norm(x).mean((1, 2))
        return self.action(x), self.studio(Reverse.apply(x, strength))


def clips(g):
    y = torch.randint(0, ACTIONS, (BATCH,), generator=g)
    studio = torch.randint(0, STUDIOS, (BATCH,), generator=g)
    x = torch.randn(BATCH, 3, FRAMES, SIZE, SIZE, generator=g)
    drift = torch.sin(torch.arange(FRAMES)[None] * y[:, None] / 10)
    return x + drift[:, None, :, None, None] + studio.view(-1, 1, 1, 1, 1) * 0.2, y, studio


def main():
    torch.manual_seed(2)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    g = torch.Generator().manual_seed(3)
    for step in range(STEPS):
        x, y, studio = (v.to(device) for v in clips(g))
        action, place = model(x, strength=min(1.0, step / 5) * 0.3)
        main_loss = F.cross_entropy(action, y, label_smoothing=0.1)
        adv = F.cross_entropy(place, studio)
        loss = main_loss + adv
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"step {step} loss {loss.item():.8f} studio {adv.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
