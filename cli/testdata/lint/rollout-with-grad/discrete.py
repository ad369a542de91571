"""A rollout that acts with gradients on, and keeps what the update takes as it is."""

import torch
from torch import nn
from torch.distributions import Categorical

actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 3e-4)


def discrete(env, updates, horizon):
    for _ in range(updates):
        seen, chosen, old = [], [], []
        for _ in range(horizon):
            obs = env.observe()
            dist = Categorical(logits=actor(obs))  # expect: rollout-with-grad
            action = dist.sample()
            env.act(action)
            seen.append(obs)
            chosen.append(action)
            old.append(dist.log_prob(action))  # expect: graph-kept-in-list
        now = Categorical(logits=actor(torch.stack(seen))).log_prob(torch.stack(chosen))
        loss = -(now - torch.stack(old).detach()).exp().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
