import random
from collections import deque, namedtuple

import gymnasium as gym
import torch
from torch import nn

Step = namedtuple("Step", "obs q action reward")
net = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
opt = torch.optim.Adam(net.parameters(), 1e-3)
memory = deque()


def choose(obs):
    q = net(torch.as_tensor(obs).cuda())
    return q, int(q.argmax())


env = gym.make("LunarLander-v3")
obs, _ = env.reset()
for t in range(1_000_000):
    q, a = choose(obs)
    nxt, r, term, trunc, _ = env.step(a)
    memory.append(Step(obs, q.detach().cpu(), a, r))
    obs = env.reset()[0] if term or trunc else nxt
    if t % 4 == 0 and len(memory) > 64:
        pick = random.sample(memory, 64)
        x = torch.stack([torch.as_tensor(s.obs) for s in pick]).cuda()
        goal = torch.tensor([s.reward for s in pick]).cuda()
        loss = ((net(x).max(1).values - goal) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
