"""DrQ-v2: DDPG from pixels with random shifts, n-step returns, scheduled exploration noise."""

import re

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")

OBS = (9, 84, 84) if CUDA else (9, 36, 36)
ACT_DIM = 6
CH = 48 if CUDA else 4
FEATURE_DIM = 50 if CUDA else 8
HIDDEN = 1024 if CUDA else 16
BATCH = 2048 if CUDA else 4
BUFFER = 4000 if CUDA else 40
UPDATES = 10 if CUDA else 3
NSTEP, GAMMA, TAU = 3, 0.99, 0.01


def schedule(s, step):
    m = re.match(r"linear\((.+),(.+),(.+)\)", s)
    init, final, dur = (float(g) for g in m.groups())
    mix = np.clip(step / dur, 0.0, 1.0)
    return (1.0 - mix) * init + mix * final


class ToyEnv:
    """a bright blob moves with the action; reward is closeness to the centre"""

    def __init__(self, rng):
        self.rng, self.size = rng, OBS[-1]

    def reset(self):
        self.pos = self.rng.uniform(-1, 1, 2)
        return self._render()

    def _render(self):
        ax = np.linspace(-1, 1, self.size)
        img = np.exp(-8 * ((ax[:, None] - self.pos[0]) ** 2 + (ax[None] - self.pos[1]) ** 2))
        return (np.stack([img] * 3) * 255).astype(np.uint8)

    def step(self, a):
        self.pos = np.clip(self.pos + 0.1 * a[:2] + 0.02 * self.rng.normal(size=2), -1, 1)
        return self._render(), 1.0 - float(np.abs(self.pos).mean())


class ReplayBuffer:
    def __init__(self, capacity, rng):
        self.rng, self.cap, self.n = rng, capacity, 0
        self.frames = np.zeros((capacity, 3) + OBS[1:], np.uint8)
        self.act = np.zeros((capacity, ACT_DIM), np.float32)
        self.rew = np.zeros((capacity, 1), np.float32)

    def add(self, frame, act, rew):
        self.frames[self.n], self.act[self.n], self.rew[self.n] = frame, act, rew
        self.n += 1

    def _stack(self, idx):
        return np.concatenate([self.frames[idx - 2], self.frames[idx - 1], self.frames[idx]], 1)

    def sample(self, size):
        idx = self.rng.integers(2, self.n - NSTEP - 1, size)
        rew = sum(GAMMA**k * self.rew[idx + k] for k in range(NSTEP))
        disc = np.full_like(rew, GAMMA**NSTEP)
        out = self._stack(idx), self.act[idx], rew, disc, self._stack(idx + NSTEP)
        return tuple(torch.as_tensor(x).to(DEVICE) for x in out)


class RandomShifts(nn.Module):
    def __init__(self, pad=4):
        super().__init__()
        self.pad = pad

    def forward(self, x):
        n, c, h, w = x.size()
        x = F.pad(x, (self.pad,) * 4, "replicate")
        s = h + 2 * self.pad
        arange = torch.linspace(-1 + 1 / s, 1 - 1 / s, s, device=x.device)[:h]
        grid = torch.stack(torch.meshgrid(arange, arange, indexing="xy"), -1)[None].repeat(
            n, 1, 1, 1
        )
        shift = torch.randint(0, 2 * self.pad + 1, (n, 1, 1, 2)).to(x.device, x.dtype) * 2.0 / s
        return F.grid_sample(x, grid + shift, padding_mode="zeros", align_corners=False)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.convnet = nn.Sequential(
            nn.Conv2d(OBS[0], CH, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(CH, CH, 3),
            nn.ReLU(),
            nn.Conv2d(CH, CH, 3),
            nn.ReLU(),
            nn.Conv2d(CH, CH, 3),
            nn.ReLU(),
        )
        with torch.no_grad():
            self.repr_dim = self.convnet(torch.zeros(1, *OBS)).numel()

    def forward(self, obs):
        return self.convnet(obs / 255.0 - 0.5).flatten(1)


def mlp(i, o):
    return nn.Sequential(
        nn.Linear(i, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, o)
    )


class Actor(nn.Module):
    def __init__(self, repr_dim):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(repr_dim, FEATURE_DIM), nn.LayerNorm(FEATURE_DIM), nn.Tanh()
        )
        self.policy = mlp(FEATURE_DIM, ACT_DIM)

    def forward(self, h, std, clip=0.3):
        mu = torch.tanh(self.policy(self.trunk(h)))
        eps = (torch.randn(mu.shape) * std).clamp(-clip, clip).to(mu.device)
        return (mu + eps).clamp(-1 + 1e-6, 1 - 1e-6)


class Critic(nn.Module):
    def __init__(self, repr_dim):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(repr_dim, FEATURE_DIM), nn.LayerNorm(FEATURE_DIM), nn.Tanh()
        )
        self.Q1, self.Q2 = mlp(FEATURE_DIM + ACT_DIM, 1), mlp(FEATURE_DIM + ACT_DIM, 1)

    def forward(self, h, a):
        x = torch.cat([self.trunk(h), a], -1)
        return self.Q1(x), self.Q2(x)


class Agent:
    def __init__(self, lr=1e-4):
        self.encoder = Encoder().to(DEVICE)
        r = self.encoder.repr_dim
        self.actor, self.critic, self.target = (
            Actor(r).to(DEVICE),
            Critic(r).to(DEVICE),
            Critic(r).to(DEVICE),
        )
        self.target.load_state_dict(self.critic.state_dict())
        self.enc_opt, self.act_opt, self.crt_opt = (
            torch.optim.Adam(m.parameters(), lr=lr) for m in (self.encoder, self.actor, self.critic)
        )
        self.aug = RandomShifts()

    def update(self, buffer, step):
        obs, act, rew, disc, nxt = buffer.sample(BATCH)
        std = schedule("linear(1.0,0.1,100)", step)
        h = self.encoder(self.aug(obs.float()))
        with torch.no_grad():
            hn = self.encoder(self.aug(nxt.float()))
            q1, q2 = self.target(hn, self.actor(hn, std))
            target = rew + disc * torch.min(q1, q2)
        q1, q2 = self.critic(h, act)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.enc_opt.zero_grad(set_to_none=True)
        self.crt_opt.zero_grad(set_to_none=True)
        critic_loss.backward()
        self.crt_opt.step()
        self.enc_opt.step()

        hd = h.detach()
        actor_loss = -torch.min(*self.critic(hd, self.actor(hd, std))).mean()
        self.act_opt.zero_grad(set_to_none=True)
        actor_loss.backward()
        self.act_opt.step()
        with torch.no_grad():
            for p, t in zip(self.critic.parameters(), self.target.parameters()):
                t.lerp_(p, TAU)
        return critic_loss.item(), actor_loss.item()


if __name__ == "__main__":
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    env, buffer = ToyEnv(rng), ReplayBuffer(BUFFER, rng)
    agent = Agent()
    frame = env.reset()
    for t in range(BUFFER):  # seed phase: uniform random actions
        a = rng.uniform(-1, 1, ACT_DIM).astype(np.float32)
        nxt_frame, r = env.step(a)
        buffer.add(frame, a, r)
        frame = env.reset() if t % 200 == 199 else nxt_frame
    for step in range(UPDATES):
        c, a = agent.update(buffer, step)
        print(f"update {step} critic loss {c:.8f} actor {a:.8f}", flush=True)
