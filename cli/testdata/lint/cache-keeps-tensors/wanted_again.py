"""Graphs that every round needs again, and caches of a schedule's numbers."""

from functools import lru_cache

import torch
from torch import nn


def learn(agents, states, rewards, loss_fn):
    actions = []
    for agent, state in zip(agents, states):
        actions.append(agent.actor(state.cuda()))
    joint = torch.cat(actions, dim=1)
    for agent in agents:
        agent.actor_optimizer.zero_grad()
    for agent, state in zip(agents, states):
        loss = -agent.critic(state.cuda(), joint).mean()
        loss.backward(retain_graph=True)  # hint: retain-graph-in-loop


def alone(agents, loader, loss_fn):
    for agent in agents:
        for state, reward in loader:
            loss = loss_fn(agent.critic(state.cuda()), reward.cuda())
            agent.optimizer.zero_grad()
            loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
            agent.optimizer.step()


class NoiseSchedule(nn.Module):
    def __init__(self, curve):
        super().__init__()
        self.curve = curve

    @lru_cache(maxsize=1000)  # noqa: B019  # hint: cache-keeps-tensors
    def beta(self, t):
        return self.curve(t)


class Encoder(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    @lru_cache(maxsize=None)  # noqa: B019  # expect: cache-keeps-tensors
    def encoded(self, t):
        return self.net(t)


def train(schedule, encoder, loader, optimizer):
    for t, x in loader:
        loss = (encoder.encoded(t) * schedule.beta(t) - x.cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
