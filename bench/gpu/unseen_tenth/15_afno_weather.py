"""Global weather emulator: adaptive Fourier token mixing, two-step rollout, latitude weights."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1979)
device = "cuda" if torch.cuda.is_available() else "cpu"


class cfg:
    lat, lon, patch, variables = 180, 360, 4, 20
    dim, depth, blocks, batch = 512, 6, 8, 4
    warm_steps, rollout_steps = 4, 8
    lr, ema_decay = 5e-4, 0.9


if device == "cpu":
    cfg.lat, cfg.lon, cfg.variables = 16, 32, 3
    cfg.dim, cfg.depth, cfg.blocks, cfg.batch = 32, 2, 4, 2
    cfg.warm_steps, cfg.rollout_steps = 3, 5


class AFNO2D(nn.Module):
    """Block-diagonal complex MLP over Fourier modes with soft shrinkage."""

    def __init__(self, dim, blocks, shrink=0.01):
        super().__init__()
        size = dim // blocks
        self.blocks, self.size, self.shrink = blocks, size, shrink
        self.w1 = nn.Parameter(0.02 * torch.randn(2, blocks, size, size))
        self.b1 = nn.Parameter(torch.zeros(2, blocks, size))
        self.w2 = nn.Parameter(0.02 * torch.randn(2, blocks, size, size))
        self.b2 = nn.Parameter(torch.zeros(2, blocks, size))

    @staticmethod
    def mix(re, im, w, b):
        out_re = torch.einsum("bhwkd,kde->bhwke", re, w[0])
        out_re = out_re - torch.einsum("bhwkd,kde->bhwke", im, w[1]) + b[0]
        out_im = torch.einsum("bhwkd,kde->bhwke", im, w[0])
        out_im = out_im + torch.einsum("bhwkd,kde->bhwke", re, w[1]) + b[1]
        return out_re, out_im

    def forward(self, x):
        b, h, w, d = x.shape
        with torch.autocast(x.device.type, enabled=False):
            f = torch.fft.rfft2(x.float(), dim=(1, 2), norm="ortho")
            f = f.unflatten(-1, (self.blocks, self.size))
            re, im = self.mix(f.real, f.imag, self.w1, self.b1)
            re, im = self.mix(F.relu(re), F.relu(im), self.w2, self.b2)
            f = torch.stack([re, im], -1)
            f = torch.view_as_complex(F.softshrink(f, self.shrink)).flatten(-2)
            y = torch.fft.irfft2(f, s=(h, w), dim=(1, 2), norm="ortho")
        return y.to(x.dtype) + x


class Block(nn.Module):
    def __init__(self, dim, blocks):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mixer = AFNO2D(dim, blocks)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        y = self.mixer(self.n1(x)) + x
        return y + self.mlp(self.n2(y))


class Emulator(nn.Module):
    def __init__(self):
        super().__init__()
        p = cfg.patch
        self.patch = nn.Conv2d(cfg.variables + 2, cfg.dim, p, p)
        self.pos = nn.Parameter(0.02 * torch.randn(1, cfg.lat // p, cfg.lon // p, cfg.dim))
        self.blocks = nn.ModuleList(Block(cfg.dim, cfg.blocks) for _ in range(cfg.depth))
        self.head = nn.Linear(cfg.dim, p * p * cfg.variables, bias=False)
        lat = torch.linspace(90, -90, cfg.lat) * math.pi / 180
        fixed = torch.stack([lat.sin(), lat.cos()])[None, :, :, None]
        self.register_buffer("fixed", fixed.expand(1, 2, cfg.lat, cfg.lon).clone())

    def forward(self, state):
        x = torch.cat([state, self.fixed.expand(len(state), -1, -1, -1)], 1)
        x = self.patch(x).permute(0, 2, 3, 1) + self.pos
        for block in self.blocks:
            x = block(x)
        x = self.head(x).permute(0, 3, 1, 2)
        return state + F.pixel_shuffle(x, cfg.patch)


def trajectories(batch, length):
    """Waves that drift eastward at a speed depending on latitude."""
    lon = torch.linspace(0, 2 * math.pi, cfg.lon + 1)[:-1]
    lat = torch.linspace(math.pi / 2, -math.pi / 2, cfg.lat)
    k = torch.randint(1, 6, (batch, cfg.variables, 1, 1)).float()
    m = torch.randint(1, 4, (batch, cfg.variables, 1, 1)).float()
    phase = torch.rand(batch, cfg.variables, 1, 1) * 6.28
    frames = []
    for t in range(length):
        shift = 0.2 * t * lat.cos()[:, None]
        frame = torch.sin(k * (lon[None] - shift) + phase) * torch.cos(m * lat[:, None])
        frames.append(frame)
    return torch.stack(frames, 1).to(device)


lat_weight = torch.linspace(90, -90, cfg.lat).mul(math.pi / 180).cos().clamp(min=0)
lat_weight = (lat_weight / lat_weight.mean()).view(1, 1, -1, 1).to(device)


def weighted_l2(pred, truth):
    return (lat_weight * (pred.float() - truth) ** 2).mean()


model = Emulator().to(device)
average = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(cfg.ema_decay)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95))
total = cfg.warm_steps + cfg.rollout_steps
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

for step in range(total):
    leads = 1 if step < cfg.warm_steps else 2  # one-step first, then fine-tune through two
    truth = trajectories(cfg.batch, leads + 1)
    state, loss = truth[:, 0], 0.0
    with torch.autocast(device, dtype=torch.bfloat16):
        for lead in range(1, leads + 1):
            state = model(state)
            loss = loss + weighted_l2(state, truth[:, lead]) / leads
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    average.update_parameters(model)
    print(f"step {step} loss {loss.item():.6f} leads {leads}", flush=True)

with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
    truth = trajectories(1, 5)
    state = truth[:, 0]
    for lead in range(1, 5):
        state = average(state)
        print(f"lead {lead} rmse {weighted_l2(state, truth[:, lead]).sqrt().item():.4f}")
