"""Video JEPA: context encoder (compiled), EMA target encoder, narrow predictor, L1 on latents."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, FRAMES, SIDE = (2, 4, 32) if SMALL else (88, 16, 128)
DIM, DEPTH, HEADS = (32, 2, 4) if SMALL else (640, 10, 10)
PDIM, PDEPTH, PHEADS = (16, 1, 2) if SMALL else (320, 4, 5)
TUBE, PATCH, STEPS = 2, 16, 10
GRID = (FRAMES // TUBE, SIDE // PATCH, SIDE // PATCH)
TOKENS = GRID[0] * GRID[1] * GRID[2]
PER_FRAME = GRID[1] * GRID[2]
KEEP = PER_FRAME // 4 * GRID[0]  # the same tube is hidden in all frames


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, d))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


def take(x, index):
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.size(-1)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv3d(3, DIM, (TUBE, PATCH, PATCH), (TUBE, PATCH, PATCH))
        self.pos = nn.Parameter(torch.randn(1, TOKENS, DIM) * 0.02)
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, video, index=None):
        x = self.patch(video).flatten(2).transpose(1, 2) + self.pos
        if index is not None:
            x = take(x, index)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(DIM, PDIM), nn.Linear(PDIM, DIM)
        self.pos = nn.Parameter(torch.randn(1, TOKENS, PDIM) * 0.02)
        self.query = nn.Parameter(torch.zeros(1, 1, PDIM))
        self.blocks = nn.ModuleList(Block(PDIM, PHEADS) for _ in range(PDEPTH))
        self.norm = nn.LayerNorm(PDIM)

    def forward(self, context, seen, hidden):
        pos = self.pos.expand(len(context), -1, -1)
        x = self.inp(context) + take(pos, seen)
        q = self.query + take(pos, hidden)
        x = torch.cat([x, q], 1)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x[:, seen.size(1) :]))


def tube_masks(g):
    order = torch.stack([torch.randperm(PER_FRAME, generator=g) for _ in range(BATCH)])
    k = KEEP // GRID[0]
    offs = torch.arange(GRID[0])[None, :, None] * PER_FRAME
    seen = (order[:, None, :k] + offs).flatten(1)
    hidden = (order[:, None, k:] + offs).flatten(1)
    return seen.to(DEVICE), hidden.to(DEVICE)


def clips(g):
    """A random texture that drifts."""
    tex = torch.randn(BATCH, 3, SIDE // 8, SIDE // 8, generator=g).to(DEVICE)
    tex = tex.repeat_interleave(8, 2).repeat_interleave(8, 3)
    return torch.stack([tex.roll((3 * f, 5 * f), (2, 3)) for f in range(FRAMES)], 2)


def main():
    torch.manual_seed(1212)
    encoder, predictor = Encoder().to(DEVICE), Predictor().to(DEVICE)
    target = copy.deepcopy(encoder).requires_grad_(False)
    for block in encoder.blocks:
        block.compile(dynamic=False, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    params = [*encoder.parameters(), *predictor.parameters()]
    opt = torch.optim.AdamW(params, lr=3e-4, weight_decay=0.04)
    g = torch.Generator().manual_seed(12)
    for step in range(STEPS):
        opt.param_groups[0]["lr"] = 3e-4 * min(1.0, (step + 1) / 5)
        video, (seen, hidden) = clips(g), tube_masks(g)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            with torch.no_grad():
                goal = F.layer_norm(target(video), (DIM,))
                goal = take(goal, hidden)
            guess = predictor(encoder(video, seen), seen, hidden)
        loss = (guess.float() - goal.float()).abs().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 3.0)
        opt.step()
        momentum = 0.996 + 0.004 * step / STEPS
        with torch.no_grad():
            for a, b in zip(target.parameters(), encoder.parameters()):
                a.mul_(momentum).add_(b, alpha=1 - momentum)
        print(f"step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
