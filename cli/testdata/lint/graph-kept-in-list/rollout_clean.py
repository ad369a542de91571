"""The same, with acting outside of autograd; and an actor-critic that needs its graphs."""

from collections import deque

import torch
from torch import nn
from torch.distributions import Categorical

policy = nn.Linear(4, 2)
critic = nn.Linear(4, 1)
opt = torch.optim.Adam([*policy.parameters(), *critic.parameters()])


def clipped(obs_of_env, updates, horizon):
    for _ in range(updates):
        old, actions, seen = [], [], []
        for _ in range(horizon):
            obs = obs_of_env()
            with torch.no_grad():
                dist = Categorical(logits=policy(obs))
                action = dist.sample()
                old.append(dist.log_prob(action))
            actions.append(action)
            seen.append(obs)
        for _ in range(4):
            dist = Categorical(logits=policy(torch.stack(seen)))
            ratio = (dist.log_prob(torch.stack(actions)) - torch.stack(old)).exp()
            loss = -ratio.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()


def actor_critic(obs_of_env, updates, horizon):
    for _ in range(updates):
        logs, values, rewards = [], [], []
        for _ in range(horizon):
            obs = obs_of_env()
            dist = Categorical(logits=policy(obs))
            action = dist.sample()
            logs.append(dist.log_prob(action))
            values.append(critic(obs))
            rewards.append(float(action))
        returns = torch.tensor(rewards)
        advantage = returns - torch.cat(values)
        loss = -(torch.stack(logs) * advantage.detach()).mean() + advantage.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def off_policy(obs_of_env, steps):
    replay = deque(maxlen=50_000)
    for _ in range(steps):
        obs = obs_of_env()
        q = policy(obs)
        replay.append((obs, q.max().item()))
        loss = (policy(obs_of_env()) - 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def smoothed(loader):
    average = 0.0
    for x, y in loader:
        loss = nn.functional.cross_entropy(policy(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        average = 0.9 * average + 0.1 * loss.item()
    return average


class Agent:
    def __init__(self):
        self.cell = nn.GRUCell(4, 4)
        self.state = None

    def act(self, obs):
        self.state = self.cell(obs, self.state).detach()
        return int(self.state.argmax())


def recurrent(obs_of_env, episodes):
    agent = Agent()
    for _ in range(episodes):
        agent.state, done = None, False
        while not done:
            done = agent.act(obs_of_env()) > 2
        loss = policy(obs_of_env()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def adversarial(loader):
    """The second backward needs the graph of the first."""
    for x, _ in loader:
        fake = policy(x)
        d_loss = critic(fake).mean() - critic(x).mean()
        opt.zero_grad()
        d_loss.backward(retain_graph=True)
        g_loss = -critic(fake).mean()
        g_loss.backward()
        opt.step()
