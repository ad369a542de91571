"""PPO on a vectorised toy grid world that lives on the device. CleanRL-like single file."""

import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


@dataclass
class Args:
    seed: int = 1
    num_envs: int = 128
    num_steps: int = 32
    size: int = 48
    width: int = 64
    updates: int = 2
    minibatches: int = 4
    epochs: int = 2
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    ent: float = 0.01
    vf: float = 0.5
    lr: float = 2.5e-4


args = Args()
if os.environ.get("SMALL") == "1":
    args.num_envs, args.num_steps, args.size, args.width = 4, 4, 12, 8


class Grid:
    """An agent, a goal and walls as three planes, plus the remaining time."""

    def __init__(self, n, size, device):
        self.n, self.size, self.device = n, size, device
        self.g = torch.Generator().manual_seed(args.seed)
        self.walls = (torch.rand(n, size, size, generator=self.g) < 0.1).float().to(device)
        self.pos, self.goal = self._random(), self._random()
        self.left = torch.full((n,), 50, device=device)

    def _random(self):
        return torch.randint(0, self.size, (self.n, 2), generator=self.g).to(self.device)

    def observe(self):
        obs = torch.zeros(self.n, 4, self.size, self.size, device=self.device)
        rows = torch.arange(self.n, device=self.device)
        obs[rows, 0, self.pos[:, 0], self.pos[:, 1]] = 1
        obs[rows, 1, self.goal[:, 0], self.goal[:, 1]] = 1
        obs[:, 2] = self.walls
        obs[:, 3] = (self.left / 50.0).view(-1, 1, 1)
        return obs

    def step(self, action):
        moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]], device=self.device)
        before = (self.pos - self.goal).abs().sum(1)
        self.pos = (self.pos + moves[action]).clamp(0, self.size - 1)
        after = (self.pos - self.goal).abs().sum(1)
        reward = (before - after).float() * 0.1
        self.left = self.left - 1
        done = (after == 0) | (self.left == 0)
        fresh_pos, fresh_goal = self._random(), self._random()
        self.pos = torch.where(done[:, None], fresh_pos, self.pos)
        self.goal = torch.where(done[:, None], fresh_goal, self.goal)
        self.left = torch.where(done, torch.full_like(self.left, 50), self.left)
        return self.observe(), reward + (after == 0).float(), done.float()


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        w = args.width
        self.trunk = nn.Sequential(
            nn.Conv2d(4, w, 3, padding=1),
            ResBlock(w),
            nn.MaxPool2d(2),
            ResBlock(w),
            nn.Conv2d(w, w, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(w * (args.size // 4) ** 2, 256),
            nn.ReLU(),
        )
        self.pi, self.v = nn.Linear(256, 4), nn.Linear(256, 1)

    def forward(self, x):
        h = self.trunk(x)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def gae(rewards, values, dones, last):
    adv, run = torch.zeros_like(rewards), torch.zeros_like(last)
    for t in reversed(range(len(rewards))):
        nxt = last if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + args.gamma * nxt * (1 - dones[t]) - values[t]
        run = delta + args.gamma * args.lam * (1 - dones[t]) * run
        adv[t] = run
    return adv


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    env, agent = Grid(args.num_envs, args.size, device), Agent().to(device)
    opt = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    obs, n = env.observe(), 0
    for update in range(args.updates):
        store = []
        for _ in range(args.num_steps):
            with torch.no_grad():
                dist, value = agent(obs)
                action = dist.sample()
            nxt, reward, done = env.step(action)
            store.append((obs, action, dist.log_prob(action), value, reward, done))
            obs = nxt
        b_obs, b_act, b_logp, b_val, b_rew, b_done = (torch.stack(x) for x in zip(*store))
        with torch.no_grad():
            adv = gae(b_rew, b_val, b_done, agent(obs)[1])
        ret = (adv + b_val).flatten()
        adv, b_obs, b_act, b_logp = (
            adv.flatten(),
            b_obs.flatten(0, 1),
            b_act.flatten(),
            b_logp.flatten(),
        )
        size = len(adv) // args.minibatches
        for _ in range(args.epochs):
            order = torch.randperm(len(adv)).to(device)
            for start in range(0, len(adv), size):
                mb = order[start : start + size]
                dist, value = agent(b_obs[mb])
                ratio = (dist.log_prob(b_act[mb]) - b_logp[mb]).exp()
                a = (adv[mb] - adv[mb].mean()) / (adv[mb].std() + 1e-8)
                pg = -torch.min(a * ratio, a * ratio.clamp(1 - args.clip, 1 + args.clip)).mean()
                v_loss = 0.5 * (value - ret[mb]).pow(2).mean()
                loss = pg + args.vf * v_loss - args.ent * dist.entropy().mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                opt.step()
                print(f"step {n} loss {loss.item():.9f} value {v_loss.item():.6f}", flush=True)
                n += 1


if __name__ == "__main__":
    main()
