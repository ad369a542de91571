"""A helper that acts, and a buffer of tuples."""

import torch
from torch import nn
from torch.distributions import Normal

policy = nn.Linear(17, 6)
optimizer = torch.optim.Adam(policy.parameters(), 3e-4)


def act(obs):
    dist = Normal(policy(obs), 0.2)
    action = dist.sample()
    return action, dist.log_prob(action).sum(-1)


def train(env, iterations, horizon, epochs):
    for _ in range(iterations):
        buffer = []
        for _ in range(horizon):
            obs = env.observe()
            action, logp = act(obs)  # expect: rollout-with-grad
            buffer.append((obs, action, logp))  # expect: graph-kept-in-list
            env.step(action)
        obs, actions, old = (torch.stack(part) for part in zip(*buffer))
        for _ in range(epochs):
            now = Normal(policy(obs), 0.2).log_prob(actions).sum(-1)
            loss = -(now - old.detach()).exp().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
