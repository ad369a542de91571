"""Acting without gradients; the update runs the model again."""

import torch
from torch import nn
from torch.distributions import Categorical

actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 3e-4)


def discrete(env, updates, horizon):
    for _ in range(updates):
        seen, chosen, old = [], [], []
        with torch.no_grad():
            for _ in range(horizon):
                obs = env.observe()
                dist = Categorical(logits=actor(obs))
                action = dist.sample()
                env.act(action)
                seen.append(obs)
                chosen.append(action)
                old.append(dist.log_prob(action))
        now = Categorical(logits=actor(torch.stack(seen))).log_prob(torch.stack(chosen))
        loss = -(now - torch.stack(old)).exp().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Agent:
    @torch.no_grad()
    def act(self, obs):
        dist = Categorical(logits=actor(obs))
        action = dist.sample()
        return action, dist.log_prob(action), critic(obs)

    def rollout(self, env, horizon):
        steps = []
        for _ in range(horizon):
            obs = env.observe()
            steps.append((obs, *self.act(obs)))
            env.act(steps[-1][1])
        return steps


def reinforce(env, episodes):
    """The loss goes through what was kept: the graph of acting is wanted."""
    for _ in range(episodes):
        gains, rewards = [], []
        while not env.done():
            dist = Categorical(logits=actor(env.observe()))
            action = dist.sample()
            gains.append(dist.log_prob(action))
            rewards.append(env.act(action))
        loss = -(torch.stack(gains) * torch.tensor(rewards)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
