import random
from collections import deque, namedtuple

import gymnasium as gym
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "feat action reward next_feat done")


class Encoder(nn.Module):
    def __init__(self, channels, width=512):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(width),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.body(x / 255.0)


class Memory:
    def __init__(self, capacity):
        self.data = deque(maxlen=capacity)

    def push(self, *args):
        self.data.append(Transition(*args))  # expect: graph-kept-here

    def sample(self, n):
        return Transition(*zip(*random.sample(self.data, n)))

    def __len__(self):
        return len(self.data)


class Agent:
    def __init__(self, channels, actions, device):
        self.device = device
        self.encoder = Encoder(channels).to(device)
        self.head = nn.Linear(512, actions).to(device)
        self.memory = Memory(100_000)
        self.opt = torch.optim.Adam(self.head.parameters(), lr=1e-4)
        self.actions = actions

    def featurize(self, obs):
        x = torch.as_tensor(obs, dtype=torch.float32, device=self.device)
        return self.encoder(x.unsqueeze(0)).squeeze(0)

    def remember(self, feat, action, reward, next_feat, done):
        self.memory.push(feat, action, reward, next_feat, done)  # expect: graph-kept-here

    def learn(self, batch=64, gamma=0.99):
        if len(self.memory) < 1000:
            return
        t = self.memory.sample(batch)
        feat = torch.stack(t.feat).detach().to(self.device)
        nxt = torch.stack(t.next_feat).detach().to(self.device)
        action = torch.tensor(t.action, device=self.device)
        reward = torch.tensor(t.reward, device=self.device)
        alive = 1.0 - torch.tensor(t.done, device=self.device, dtype=torch.float32)
        q = self.head(feat).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            target = reward + gamma * alive * self.head(nxt).max(1).values
        loss = F.smooth_l1_loss(q, target)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


def main(frames=2_000_000):
    env = gym.make("ALE/Seaquest-v5")
    agent = Agent(4, env.action_space.n, torch.device("cuda"))
    obs, _ = env.reset()
    feat = agent.featurize(obs)
    for frame in range(frames):
        action = random.randrange(agent.actions)
        obs, reward, term, trunc, _ = env.step(action)
        next_feat = agent.featurize(obs)
        agent.remember(feat, action, float(reward), next_feat, term)  # expect: graph-kept-in-list
        agent.learn()
        feat = next_feat
        if term or trunc:
            obs, _ = env.reset()
            feat = agent.featurize(obs)


if __name__ == "__main__":
    main()
