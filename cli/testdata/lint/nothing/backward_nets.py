"""Networks that run backward in time differentiate nothing; samples of a policy have no graph."""

import torch
from agents import Agent, History
from torch import nn

from models import parts


class Planner(nn.Module):
    def __init__(self, width=256, rollouts=64):
        super().__init__()
        self.step_model, self.backward_model, self.actor = parts(width)
        self.rollouts = rollouts

    def plan(self, hidden, goal):
        base = hidden
        for _ in range(self.rollouts):
            base = self.step_model(base, self.actor(base))
            goal = self.backward_model(goal, self.actor(goal))
            print((base - goal).abs().max())


def select_action(dist):
    return dist.sample()


def train(env, config):
    agent = Agent(config)
    optimizer = torch.optim.Adam(agent.parameters())
    obs, action = env.reset(), torch.zeros(8)
    memory = agent.zero_memory(8)
    while True:
        history = History()
        memory = agent.detach_memory(memory)
        for _ in range(config.horizon):
            transition = history.append_transition()
            dist, value, later = agent(obs, action, memory)
            transition.record(value=value, entropy=dist.entropy())
            action = select_action(dist)
            transition.record(log_prob=dist.log_prob(action))
            obs, reward, done, _ = env.step(action)
            memory = agent.reset_memory(later, done)
        rollout = history.build()
        loss = (rollout.value - rollout.reward).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
