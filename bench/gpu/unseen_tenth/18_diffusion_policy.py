"""Diffusion policy for manipulation: camera encoders and a conditional 1D U-Net (accelerate)."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

HAVE_GPU = torch.cuda.is_available()
OBS_STEPS, HORIZON, ACTION_DIM, STATE_DIM, CAMERAS = 2, 16, 7, 9, 2
if HAVE_GPU:
    IMAGE, WIDTH, DOWN, BATCH, STEPS = 128, 64, (256, 512, 768), 128, 12
else:
    IMAGE, WIDTH, DOWN, BATCH, STEPS = 32, 8, (16, 32), 2, 8
DIFFUSION_STEPS = 100


class Demonstrations(Dataset):
    """A gripper (bright dot) moves to a target (dim dot); actions follow the straight line."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        hand, goal = torch.rand(2, 2, generator=g) * 1.6 - 0.8
        axis = torch.linspace(-1, 1, IMAGE)
        frames = []
        for t in range(OBS_STEPS):
            at = hand + 0.03 * t * (goal - hand)
            spot = torch.zeros(IMAGE, IMAGE)
            for centre, level in ((at, 1.0), (goal, 0.5)):
                d = (axis[:, None] - centre[1]) ** 2 + (axis[None] - centre[0]) ** 2
                spot = spot + level * torch.exp(-d * 60)
            views = torch.stack([spot, spot.t()])[:, None].expand(CAMERAS, 3, IMAGE, IMAGE)
            frames.append(views + 0.02 * torch.randn(CAMERAS, 3, IMAGE, IMAGE, generator=g))
        path = torch.linspace(0, 1, HORIZON)[:, None] * (goal - hand) + hand
        action = torch.cat([path, torch.zeros(HORIZON, ACTION_DIM - 2)], 1)
        state = torch.cat([hand, torch.zeros(STATE_DIM - 2)]).expand(OBS_STEPS, -1)
        return {"image": torch.stack(frames), "state": state.clone(), "action": action}


class GNBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.gn1, self.gn2 = nn.GroupNorm(cout // 4, cout), nn.GroupNorm(cout // 4, cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.gn1(self.conv1(x)))
        y = self.gn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class CameraEncoder(nn.Module):
    """ResNet-18 layout with group norm and a spatial softmax over keypoints."""

    def __init__(self, keypoints=32):
        super().__init__()
        w = WIDTH
        layers = [
            nn.Conv2d(3, w, 7, 2, 3),
            nn.GroupNorm(w // 4, w),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        cin = w
        for i in range(4):
            cout = w * 2**i
            layers += [GNBlock(cin, cout, 1 if i == 0 else 2), GNBlock(cout, cout, 1)]
            cin = cout
        layers.append(nn.Conv2d(cin, keypoints, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        x = self.net(x).float()
        b, k, h, w = x.shape
        p = F.softmax(x.flatten(2), -1).view(b, k, h, w)
        ys = torch.linspace(-1, 1, h, device=x.device)
        xs = torch.linspace(-1, 1, w, device=x.device)
        return torch.cat([(p.sum(3) * ys).sum(2), (p.sum(2) * xs).sum(2)], 1)


class CondBlock(nn.Module):
    def __init__(self, cin, cout, cond):
        super().__init__()
        self.a = nn.Sequential(nn.Conv1d(cin, cout, 5, padding=2), nn.GroupNorm(8, cout), nn.Mish())
        self.b = nn.Sequential(
            nn.Conv1d(cout, cout, 5, padding=2), nn.GroupNorm(8, cout), nn.Mish()
        )
        self.film = nn.Sequential(nn.Mish(), nn.Linear(cond, 2 * cout))
        self.res = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, cond):
        scale, bias = self.film(cond)[..., None].chunk(2, 1)
        return self.b(self.a(x) * (1 + scale) + bias) + self.res(x)


class Policy(nn.Module):
    def __init__(self, step_dim=128):
        super().__init__()
        self.cameras = nn.ModuleList(CameraEncoder() for _ in range(CAMERAS))
        cond = step_dim + OBS_STEPS * (CAMERAS * 64 + STATE_DIM)
        self.step_dim = step_dim
        self.step = nn.Sequential(
            nn.Linear(step_dim, 4 * step_dim), nn.Mish(), nn.Linear(4 * step_dim, step_dim)
        )
        self.down, self.up, cin = nn.ModuleList(), nn.ModuleList(), ACTION_DIM
        for c in DOWN:
            self.down.append(nn.ModuleList([CondBlock(cin, c, cond), nn.Conv1d(c, c, 3, 2, 1)]))
            cin = c
        self.mid = CondBlock(cin, cin, cond)
        for c in reversed(DOWN):
            up = nn.ConvTranspose1d(cin, c, 4, 2, 1)
            self.up.append(nn.ModuleList([up, CondBlock(2 * c, c, cond)]))
            cin = c
        self.out = nn.Conv1d(cin, ACTION_DIM, 1)

    def forward(self, noisy, t, image, state):
        feats = [enc(image[:, :, i].flatten(0, 1)) for i, enc in enumerate(self.cameras)]
        obs = torch.cat([f.view(len(noisy), -1) for f in feats] + [state.flatten(1)], 1)
        freq = torch.exp(torch.arange(self.step_dim // 2, device=t.device) * (-8 / self.step_dim))
        ang = t[:, None].float() * freq
        cond = torch.cat([self.step(torch.cat([ang.sin(), ang.cos()], 1)), obs], 1)
        x, skips = noisy.transpose(1, 2), []
        for block, shrink in self.down:
            x = block(x, cond)
            skips.append(x)
            x = shrink(x)
        x = self.mid(x, cond)
        for grow, block in self.up:
            x = block(torch.cat([grow(x), skips.pop()], 1), cond)
        return self.out(x).transpose(1, 2)


class PowerEMA:
    def __init__(self, model, power=0.75):
        self.power, self.n = power, 0
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        self.n += 1
        decay = 1 - (1 + self.n) ** -self.power
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v.float(), 1 - decay)


def main():
    set_seed(23)
    acc = Accelerator(mixed_precision="fp16" if HAVE_GPU else "no", cpu=not HAVE_GPU)
    loader = DataLoader(Demonstrations(BATCH * STEPS, 0), BATCH, shuffle=True)
    policy = Policy()
    opt = torch.optim.AdamW(policy.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda n: min(1.0, (n + 1) / 4) * 0.5 * (1 + math.cos(math.pi * n / (2 * STEPS)))
    )
    policy, opt, loader, sched = acc.prepare(policy, opt, loader, sched)
    ema = PowerEMA(acc.unwrap_model(policy))
    t = torch.arange(DIFFUSION_STEPS + 1, device=acc.device) / DIFFUSION_STEPS
    alpha_bar = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    for step, batch in enumerate(loader):
        action = batch["action"]
        k = torch.randint(0, DIFFUSION_STEPS, (len(action),), device=acc.device)
        noise = torch.randn_like(action)
        a = alpha_bar[k][:, None, None]
        noisy = a.sqrt() * action + (1 - a).sqrt() * noise
        guess = policy(noisy, k, batch["image"], batch["state"])
        loss = F.mse_loss(guess.float(), noise)
        acc.backward(loss)
        if acc.sync_gradients:
            acc.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        ema.update(acc.unwrap_model(policy))
        acc.print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
