"""Rollouts that keep the graph of acting until they are replaced."""

from collections import deque

import torch
from torch import nn
from torch.distributions import Categorical

policy = nn.Linear(4, 2)
critic = nn.Linear(4, 1)
opt = torch.optim.Adam([*policy.parameters(), *critic.parameters()])


def clipped(obs_of_env, updates, horizon):
    for _ in range(updates):
        old, values, actions, seen = [], [], [], []
        for _ in range(horizon):
            obs = obs_of_env()
            dist = Categorical(logits=policy(obs))  # expect: rollout-with-grad
            action = dist.sample()
            old.append(dist.log_prob(action))  # expect: graph-kept-in-list
            values.append(critic(obs))  # expect: graph-kept-in-list
            actions.append(action)
            seen.append(obs)
        before, baseline = torch.stack(old).detach(), torch.stack(values).detach()
        for _ in range(4):
            dist = Categorical(logits=policy(torch.stack(seen)))
            ratio = (dist.log_prob(torch.stack(actions)) - before).exp()
            loss = -(ratio * (1 - baseline)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()


class Replay:
    def __init__(self, size):
        self.items = deque(maxlen=size)

    def add(self, item):
        self.items.append(item)  # expect: graph-kept-here


def off_policy(obs_of_env, steps):
    replay = Replay(50_000)
    for _ in range(steps):
        obs = obs_of_env()
        q = policy(obs)
        replay.add((obs, q.max()))  # expect: graph-kept-in-list
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
        average = 0.9 * average + 0.1 * loss  # expect: graph-kept-in-list
    return float(average)


class Agent:
    """The state of acting goes on from step to step, with its graph."""

    def __init__(self):
        self.cell = nn.GRUCell(4, 4)
        self.state = None

    def act(self, obs):
        self.state = self.cell(obs, self.state)  # expect: graph-kept-in-list
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
    """The second backward goes through another graph."""
    for x, _ in loader:
        fake = policy(x)
        g_loss = -critic(fake).mean()
        opt.zero_grad()
        g_loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
        opt.step()
        d_loss = critic(fake.detach()).mean() - critic(x).mean()
        opt.zero_grad()
        d_loss.backward()
        opt.step()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(16, 16), nn.Linear(16, 4)

    def unrolled(self, frames, state, ends):
        seen = []
        for frame, end in zip(frames, ends):
            out, state = self.cell(frame[None], state * (1.0 - end))  # hint: graph-kept-in-list
            seen.append(out)
        return self.head(torch.cat(seen)), state


def improve(policy, optimizer, env, rounds, steps):
    state, frames, ends = torch.zeros(1, 1, 16), [], []
    for _ in range(rounds):
        begun = state.clone()
        for _ in range(steps):
            with torch.no_grad():
                logits, state = policy.unrolled(frames[-1:], state, ends[-1:])
            frame, reward, end, _ = env.step(logits.argmax().item())
            frames.append(frame)
            ends.append(end)
        logits, _ = policy.unrolled(torch.stack(frames), begun, ends)
        loss = logits.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


policy = Recurrent()
improve(policy, torch.optim.Adam(policy.parameters()), make(), 8, 32)
