"""The network of a small control problem has a few thousand weights: a copy of it costs nothing."""

import copy

import gymnasium as gym
import torch
from torch import nn

env = gym.make("LunarLander-v2")
device = torch.device("cuda")


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)).to(device)
        self.optimizer = torch.optim.Adam(self.policy.parameters())
        self.snapshots = []

    def episode(self):
        state, done, log_probs, rewards = env.reset()[0], False, [], []
        while not done:
            scores = self.policy(torch.tensor(state, device=device))
            action = torch.distributions.Categorical(logits=scores).sample()
            log_probs.append(scores[action])
            state, reward, done, _, _ = env.step(action.item())
            rewards.append(reward)
        return torch.stack(log_probs), sum(rewards)

    def train(self, episodes):
        for i in range(episodes):
            log_probs, reward = self.episode()
            loss = -(log_probs * reward).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if i % 10 == 0:
                self.snapshots.append(copy.deepcopy(self.policy))  # hint: model-copies-kept
