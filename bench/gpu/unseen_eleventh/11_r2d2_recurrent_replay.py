"""R2D2: recurrent Q-learning from sequences with burn-in, double Q and stored priorities."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(43)
rng = np.random.default_rng(43)

batch_size = 64 if large else 4
frame = 84 if large else 20
width = 64 if large else 8
burn, unroll = (8, 32) if large else (2, 6)
n_step, gamma, actions = 3, 0.99, 4


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class RecurrentQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.torso = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            Residual(width),
            Residual(width),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            Residual(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(5),
            nn.Flatten(),
        )
        self.lstm = nn.LSTM(50 * width + actions + 1, 256)
        self.value, self.advantage = nn.Linear(256, 1), nn.Linear(256, actions)

    def forward(self, frames, last_action, last_reward, state=None):
        t, b = frames.shape[:2]
        x = self.torso(frames.flatten(0, 1).float().div(255)).view(t, b, -1)
        extra = [F.one_hot(last_action, actions).float(), last_reward.unsqueeze(-1)]
        y, state = self.lstm(torch.cat([x, *extra], dim=-1), state)
        adv = self.advantage(y)
        return self.value(y) + adv - adv.mean(-1, keepdim=True), state


def squash(x):
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x


def unsquash(x):
    root = (1 + 4e-3 * (x.abs() + 1 + 1e-3)).sqrt()
    return x.sign() * (((root - 1) / 2e-3).square() - 1)


class Replay:
    """Episodes of a ball that a paddle has to follow, played by a half-random policy."""

    def __init__(self, episodes, length):
        self.frames = np.zeros((episodes, length, frame, frame), np.uint8)
        self.actions = rng.integers(0, actions, (episodes, length))
        self.rewards = np.zeros((episodes, length), np.float32)
        self.priority = np.ones(episodes)
        for e in range(episodes):
            ball, paddle, speed = rng.integers(2, frame - 2), frame // 2, rng.choice([-2, -1, 1, 2])
            for t in range(length):
                self.frames[e, t, : frame // 4, max(0, ball - 2) : ball + 2] = 255
                self.frames[e, t, -frame // 4 :, max(0, paddle - 3) : paddle + 3] = 180
                if rng.random() < 0.5:
                    self.actions[e, t] = 1 if ball > paddle else 0
                paddle += (-3, 3, 0, 0)[self.actions[e, t]]
                paddle = int(np.clip(paddle, 3, frame - 3))
                ball += speed
                if not 2 <= ball < frame - 2:
                    speed = -speed
                    ball += 2 * speed
                self.rewards[e, t] = float(abs(ball - paddle) < 6)

    def sample(self):
        p = self.priority**0.9
        p = p / p.sum()
        rows = rng.choice(len(p), batch_size, p=p)
        weights = (len(p) * p[rows]) ** -0.6
        pack = [self.frames[rows][:, :, None], self.actions[rows], self.rewards[rows]]
        tensors = [torch.from_numpy(a).transpose(0, 1).to(device) for a in pack]
        return rows, torch.tensor(weights / weights.max(), device=device).float(), *tensors


replay = Replay(192 if large else 16, burn + unroll + n_step + 1)
online = RecurrentQ().to(device)
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=5e-4, eps=1e-3)

for step in range(12):
    rows, weights, frames, act, rew = replay.sample()
    last_act, last_rew = act.roll(1, 0), rew.roll(1, 0)
    with torch.no_grad():
        _, warm = online(frames[:burn], last_act[:burn], last_rew[:burn])
        _, warm_target = target(frames[:burn], last_act[:burn], last_rew[:burn])
    rest = (frames[burn:-1], last_act[burn:-1], last_rew[burn:-1])
    q, _ = online(*rest, warm)
    with torch.no_grad():
        q_target, _ = target(*rest, warm_target)
        best = q.argmax(-1, keepdim=True)
        bootstrap = unsquash(q_target.gather(-1, best).squeeze(-1))[n_step:]
        returns = sum(gamma**k * rew[burn + k : burn + k + unroll] for k in range(n_step))
        goal = squash(returns + gamma**n_step * bootstrap)
    chosen = q[:unroll].gather(-1, act[burn : burn + unroll, :, None]).squeeze(-1)
    td = goal - chosen
    loss = (weights * td.square()).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(online.parameters(), 40.0)
    optimizer.step()
    size = td.detach().abs()
    replay.priority[rows] = (0.9 * size.amax(0) + 0.1 * size.mean(0)).cpu().numpy() + 1e-3
    if step % 4 == 3:
        target.load_state_dict(online.state_dict())
    print(f"step {step} loss {loss.item():.6f} mean q {q.mean().item():.4f}")
