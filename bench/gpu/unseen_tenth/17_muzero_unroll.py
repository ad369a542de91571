"""MuZero learner: representation, dynamics and prediction networks unrolled over replayed games."""

import collections

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 86
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")

FRAME = 96 if GPU else 32
STACK = 12 if GPU else 8
CHANNELS = 128 if GPU else 8
BLOCKS = 8 if GPU else 1
BATCH = 256 if GPU else 4
UNROLL = 5 if GPU else 3
SUPPORT = 300 if GPU else 10
ACTIONS = 18
UPDATES = 12 if GPU else 8
DISCOUNT = 0.997

Game = collections.namedtuple("Game", "frames actions rewards policies values")


def play_game(gen, length):
    """Stand-in for self-play with search: a random walk whose rewards depend on the action."""
    frames = torch.randint(0, 255, (length, STACK // 4, FRAME, FRAME), generator=gen).to(
        torch.uint8
    )
    actions = torch.randint(0, ACTIONS, (length,), generator=gen)
    rewards = (actions.float() / ACTIONS - 0.5) + 0.1 * torch.randn(length, generator=gen)
    policies = F.softmax(torch.randn(length, ACTIONS, generator=gen), -1)
    values, run = torch.zeros(length), 0.0
    for t in reversed(range(length)):
        run = rewards[t].item() + DISCOUNT * run
        values[t] = run
    return Game(frames, actions, rewards, policies, values)


class Replay:
    def __init__(self, games):
        self.games = games
        weight = torch.tensor([float(len(g.actions)) for g in games])
        self.prob = weight / weight.sum()

    def sample(self, gen):
        which = torch.multinomial(self.prob, BATCH, replacement=True, generator=gen).tolist()
        rows = []
        for w in which:
            g = self.games[w]
            high = len(g.actions) - UNROLL - 1
            t = int(torch.randint(4, high, (1,), generator=gen))
            span = slice(t, t + UNROLL + 1)
            obs = g.frames[t - 4 : t].flatten(0, 1)
            rows.append((obs, g.actions[span], g.rewards[span], g.policies[span], g.values[span]))
        return [torch.stack(col).to(DEVICE) for col in zip(*rows, strict=True)]


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.c2, self.b2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(x + self.b2(self.c2(y)))


def tower(c, n):
    return nn.Sequential(*(Residual(c) for _ in range(n)))


def unit_range(h):
    low = h.amin((1, 2, 3), keepdim=True)
    high = h.amax((1, 2, 3), keepdim=True)
    return (h - low) / (high - low + 1e-5)


class MuZeroNet(nn.Module):
    def __init__(self):
        super().__init__()
        c, side = CHANNELS, FRAME // 8
        self.representation = nn.Sequential(
            nn.Conv2d(STACK, c // 2, 3, 2, 1),
            tower(c // 2, 2),
            nn.Conv2d(c // 2, c, 3, 2, 1),
            tower(c, 2),
            nn.AvgPool2d(3, 2, 1),
            tower(c, BLOCKS),
        )
        self.enter = nn.Sequential(nn.Conv2d(c + 1, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())
        self.dynamics = tower(c, BLOCKS)
        self.reward = self.head(c, side, 2 * SUPPORT + 1)
        self.value = self.head(c, side, 2 * SUPPORT + 1)
        self.policy = self.head(c, side, ACTIONS)

    @staticmethod
    def head(c, side, out):
        return nn.Sequential(
            nn.Conv2d(c, 16, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * side * side, 128),
            nn.ReLU(),
            nn.Linear(128, out),
        )

    def initial(self, obs):
        return unit_range(self.representation(obs.float() / 255))

    def recurrent(self, h, action):
        plane = (action.float() / ACTIONS).view(-1, 1, 1, 1).expand(-1, 1, *h.shape[2:])
        y = self.dynamics(self.enter(torch.cat([h, plane], 1)))
        return unit_range(y), self.reward(y)


def two_hot(x):
    """Squash, then spread over the two nearest atoms of the categorical support."""
    x = x.sign() * ((x.abs() + 1).sqrt() - 1) + 0.001 * x
    x = x.clamp(-SUPPORT, SUPPORT)
    low = x.floor()
    frac = x - low
    out = torch.zeros(len(x), 2 * SUPPORT + 1, device=x.device)
    at = (low + SUPPORT).long()[:, None]
    out.scatter_(1, at, (1 - frac)[:, None])
    out.scatter_add_(1, (at + 1).clamp(max=2 * SUPPORT), frac[:, None])
    return out


def soft_ce(logits, target):
    return -(target * F.log_softmax(logits, -1)).sum(-1).mean()


def learn(net, opt, batch):
    obs, action, reward, policy, value = batch
    h = net.initial(obs)
    loss = soft_ce(net.policy(h), policy[:, 0]) + 0.25 * soft_ce(net.value(h), two_hot(value[:, 0]))
    for k in range(1, UNROLL + 1):
        h, r = net.recurrent(h, action[:, k - 1])
        part = soft_ce(r, two_hot(reward[:, k - 1])) + soft_ce(net.policy(h), policy[:, k])
        part = part + 0.25 * soft_ce(net.value(h), two_hot(value[:, k]))
        loss = loss + part / UNROLL
        h.register_hook(lambda grad: grad * 0.5)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    return loss.item()


if __name__ == "__main__":
    torch.manual_seed(SEED)
    gen = torch.Generator().manual_seed(SEED)
    replay = Replay([play_game(gen, 40 + 10 * i) for i in range(4)])
    net = MuZeroNet().to(DEVICE)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.97)
    for update in range(UPDATES):
        loss = learn(net, opt, replay.sample(gen))
        sched.step()
        print(f"step {update} loss {loss:.6f}", flush=True)
        if update % 4 == 3:  # fresh games replace the oldest
            replay = Replay([*replay.games[1:], play_game(gen, 50)])
