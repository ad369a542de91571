import torch
import torch.nn.functional as F



class Buffer:
    def __init__(self):
        self.log_probs = []
        self.rewards = []

    def add(self, log_prob, reward):
        self.log_probs.append(log_prob)
        self.rewards.append(reward)


def train(policy, env, optimizer, episodes):
    buffer = Buffer()
    state = env.reset()
    for episode in range(episodes):
        for _ in range(200):
            dist = torch.distributions.Categorical(logits=policy(state))
            action = dist.sample()
            state, reward, done, _ = env.step(action.item())
            buffer.add(dist.log_prob(action), reward)  # expect: graph-kept-in-list
            if done:
                state = env.reset()
                break
        loss = -(torch.stack(buffer.log_probs) * torch.tensor(buffer.rewards)).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()
