"""What each round begins anew, though not every path through it says so; and points of a picture."""

import torch
from matplotlib import pyplot as plt


def by_kind(model, loader, optimizer, epochs, kind):
    for epoch in range(epochs):
        for data in loader:
            if kind == "softmax":
                loss, logits = model(data["x"], data["y"])
            elif kind == "crf":
                loss, logits = model(data["x"], data["mask"], data["y"])
            loss = loss.mean()
            loss = loss / 4
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def rollouts(model, optimizer, envs, update, steps):
    state = envs.reset().cuda()
    while True:
        states, rewards = [], []
        for _ in range(steps):
            states.append(state)
            with torch.no_grad():
                action = model(state).argmax(1)
            state, reward = envs.step(action)
            rewards.append(reward)
        states = torch.cat(states)
        loss = update(model(states), torch.cat(rewards))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def curve(net, x, y, test_x, optimizer):
    for step in range(500):
        loss = torch.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            net.eval()
            line = net(test_x)  # hint: eval-without-no-grad
            plt.plot(test_x.numpy(), line.data.numpy())
            net.train()
