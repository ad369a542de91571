import gym
import torch
from torch import nn

env = gym.make("CartPole-v1")
policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)).cuda()
opt = torch.optim.Adam(policy.parameters(), 1e-3)
baseline = torch.zeros((), device="cuda")
for episode in range(10000):
    obs, done, logps, rewards = env.reset(), False, [], []
    while not done:
        dist = torch.distributions.Categorical(logits=policy(torch.tensor(obs).cuda()))
        action = dist.sample()
        obs, r, done, _ = env.step(action.item())
        logps.append(dist.log_prob(action))
        rewards.append(r)
    loss = -(torch.stack(logps) * (sum(rewards) - baseline)).mean()  # expect: hidden-state-not-detached
    opt.zero_grad()
    loss.backward()
    opt.step()
    baseline = 0.9 * baseline + 0.1 * (sum(rewards) + loss)  # expect: hidden-state-not-detached
