import torch
from torch import nn


class Agent:
    def __init__(self):
        self.policy = nn.Linear(4, 2).cuda()
        self.opt = torch.optim.Adam(self.policy.parameters())
        self.log_probs = []
        self.rewards = []

    def act(self, obs):
        dist = torch.distributions.Categorical(logits=self.policy(obs))
        a = dist.sample()
        self.log_probs.append(dist.log_prob(a))
        return a.item()

    def learn(self):
        loss = -(torch.stack(self.log_probs) * torch.tensor(self.rewards).cuda()).sum()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.log_probs.clear()
        self.rewards.clear()


agent = Agent()
for episode in range(1000):
    for t in range(100):
        agent.act(torch.zeros(4).cuda())
        agent.rewards.append(1.0)
    agent.learn()
