import torch
import torch.nn.functional as F


from collections import deque


def play(policy, env, steps, optimizer):
    memory = deque()
    obs = env.reset()
    for t in range(steps):
        value, logits = policy(obs)
        action = torch.distributions.Categorical(logits=logits).sample()
        nxt, reward, done, info = env.step(action)
        memory.append((obs, action, value, reward))  # expect: graph-kept-in-list
        if t % 128 == 127:
            values = torch.cat([m[2] for m in memory])
            loss = F.mse_loss(values, torch.tensor([m[3] for m in memory]))
            optimizer.zero_grad()
            loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
            optimizer.step()
        obs = nxt


def play_clean(policy, env, steps, optimizer):
    memory = deque(maxlen=10000)
    obs = env.reset()
    for t in range(steps):
        with torch.no_grad():
            value, logits = policy(obs)
        action = torch.distributions.Categorical(logits=logits).sample()
        nxt, reward, done, info = env.step(action)
        memory.append((obs, action, value, reward))
        if t % 128 == 127:
            batch = list(memory)[-128:]
            values, _ = policy(torch.stack([m[0] for m in batch]))
            loss = F.mse_loss(values, torch.tensor([m[3] for m in batch]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        obs = nxt
