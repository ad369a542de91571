"""Implicit quantile network (distributional Q-learning) from a replay of synthetic frames."""

from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
dev = torch.device("cuda:0" if CUDA else "cpu")
BATCH = 1536 if CUDA else 8
TAUS = 64 if CUDA else 4
REPLAY = 3000 if CUDA else 40
UPDATES = 16 if CUDA else 4
ACTIONS, GAMMA, KAPPA, TARGET_EVERY = 6, 0.99, 1.0, 5


class IQN(nn.Module):
    def __init__(self, cosines=64):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.register_buffer("k", torch.arange(1, cosines + 1) * np.pi)
        self.phi = nn.Linear(cosines, 3136)
        self.value = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 1))
        self.adv = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS))

    def forward(self, frames, n):
        f = self.conv(frames.float() / 255.0)
        tau = torch.rand(len(f), n, device=f.device)
        cos = torch.cos(tau.unsqueeze(-1) * self.k)
        h = f.unsqueeze(1) * F.relu(self.phi(cos))
        adv = self.adv(h)
        return self.value(h) + adv - adv.mean(-1, keepdim=True), tau


class Replay:
    """Frames are kept as bytes in host memory, transitions are index pairs."""

    def __init__(self, size, seed):
        self.rng = np.random.default_rng(seed)
        self.frames = self.rng.integers(0, 255, (size + 5, 84, 84), dtype=np.uint8)
        self.buffer = deque(maxlen=size)
        for i in range(size):
            a = int(self.rng.integers(ACTIONS))
            r = float(self.frames[i].mean() > 127) * (a == 2) - 0.1 * (a == 0)
            self.buffer.append((i, a, r, self.rng.random() < 0.02))

    def sample(self, n):
        pick = self.rng.integers(len(self.buffer), size=n)
        idx, a, r, done = zip(*[self.buffer[p] for p in pick], strict=True)
        idx = np.array(idx)[:, None] + np.arange(4)
        s = torch.from_numpy(self.frames[idx]).to(dev)
        s2 = torch.from_numpy(self.frames[idx + 1]).to(dev)
        a = torch.tensor(a, device=dev)
        r = torch.tensor(r, dtype=torch.float32, device=dev)
        return s, a, r, torch.tensor(done, dtype=torch.float32, device=dev), s2


def quantile_huber(theta, target, tau):
    u = target.unsqueeze(1) - theta.unsqueeze(2)
    huber = torch.where(u.abs() <= KAPPA, 0.5 * u**2, KAPPA * (u.abs() - 0.5 * KAPPA))
    weight = (tau.unsqueeze(2) - (u.detach() < 0).float()).abs()
    return (weight * huber / KAPPA).sum(1).mean()


def main():
    torch.manual_seed(13)
    online, target = IQN().to(dev), IQN().to(dev)
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    opt = torch.optim.Adam(online.parameters(), lr=1e-4, eps=0.01 / 32)
    replay = Replay(REPLAY, 13)
    for update in range(UPDATES):
        s, a, r, done, s2 = replay.sample(BATCH)
        with torch.no_grad():
            z2, _ = target(s2, TAUS)
            best = z2.mean(1).argmax(-1)
            z2 = z2.gather(2, best[:, None, None].expand(-1, TAUS, 1)).squeeze(2)
            goal = r[:, None] + GAMMA * (1 - done[:, None]) * z2
        z, tau = online(s, TAUS)
        theta = z.gather(2, a[:, None, None].expand(-1, TAUS, 1)).squeeze(2)
        loss = quantile_huber(theta, goal, tau)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        opt.step()
        if (update + 1) % TARGET_EVERY == 0:
            target.load_state_dict(online.state_dict())
        print(f"update {update} loss {loss.item():.7f} q {z.mean().item():.5f}", flush=True)


if __name__ == "__main__":
    main()
