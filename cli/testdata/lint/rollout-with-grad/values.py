"""The values of a critic, kept for the advantages."""

import torch
from torch import nn
from torch.distributions import Categorical


class Agent:
    def __init__(self, width, choices):
        self.actor = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, choices))
        self.critic = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 1))
        both = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(both, 1e-3)

    def train(self, env, rounds, horizon):
        for _ in range(rounds):
            values, states, actions, returns = [], [], [], []
            for _ in range(horizon):
                state = env.observe()
                with torch.no_grad():
                    action = Categorical(logits=self.actor(state)).sample()
                value = self.critic(state)  # expect: rollout-with-grad
                values.append(value)  # expect: graph-kept-in-list
                states.append(state)
                actions.append(action)
                returns.append(env.step(action))
            gain = torch.tensor(returns) - torch.cat(values).detach()
            dist = Categorical(logits=self.actor(torch.stack(states)))
            loss = -(gain * dist.log_prob(torch.stack(actions))).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
