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
    memory.append(Step(obs, q, a, r))  # expect: graph-kept-in-list
    obs = env.reset()[0] if term or trunc else nxt
    if t % 4 == 0 and len(memory) > 64:
        pick = random.sample(memory, 64)
        x = torch.stack([torch.as_tensor(s.obs) for s in pick]).cuda()
        goal = torch.tensor([s.reward for s in pick]).cuda()
        loss = ((net(x).max(1).values - goal) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def choose_clean(obs_clean):
    q_clean = net(torch.as_tensor(obs_clean).cuda())
    return q_clean, int(q_clean.argmax())


obs_clean, __clean = env.reset()
for t_clean in range(1_000_000):
    q_clean, a_clean = choose_clean(obs_clean)
    nxt_clean, r_clean, term_clean, trunc_clean, __clean = env.step(a_clean)
    memory.append(Step(obs_clean, q_clean.detach().cpu(), a_clean, r_clean))
    obs_clean = env.reset()[0] if term_clean or trunc_clean else nxt_clean
    if t_clean % 4 == 0 and len(memory) > 64:
        pick_clean = random.sample(memory, 64)
        x_clean = torch.stack([torch.as_tensor(s_clean.obs) for s_clean in pick_clean]).cuda()
        goal_clean = torch.tensor([s_clean.reward for s_clean in pick_clean]).cuda()
        loss_clean = ((net(x_clean).max(1).values - goal_clean) ** 2).mean()
        opt.zero_grad()
        loss_clean.backward()
        opt.step()
