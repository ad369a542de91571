"""On a small control task the spent graph of a loss is a few nodes; a buffer of outputs is not."""

import gymnasium as gym
import torch

env = gym.make("Acrobot-v1")
policy = torch.nn.Linear(6, 3)
optimizer = torch.optim.Adam(policy.parameters())


class History:
    def __init__(self):
        self.losses = []

    def episode(self, loss):
        self.losses.append(loss)  # hint: graph-kept-here


history = History()
curve, total, buffer = [], 0, []
for episode in range(2000):
    state, _ = env.reset()
    done = False
    while not done:
        scores = policy(torch.as_tensor(state))
        buffer.append(scores)  # expect: graph-kept-in-list
        state, reward, done, _, _ = env.step(int(scores.argmax()))
        loss = (reward - scores.max()) ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss)  # hint: graph-kept-in-list
        total += loss  # hint: loss-graph-accumulated
    history.episode(loss)  # hint: graph-kept-in-list
print(total, len(curve), len(buffer))
