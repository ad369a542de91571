"""What is emptied every few steps, cut back to a size, or overwritten by the next batch."""

import torch
from torch import nn
from torch.distributions import Categorical

EVERY = 20


def act(env, net, optimizer, update, episodes):
    samples, step = [], 0
    for _ in range(episodes):
        obs, done = env.reset(), False
        while not done:
            prob = net(torch.tensor(obs).float())
            action = Categorical(prob).sample().item()
            obs, reward, done, _ = env.step(action)
            samples.append((action, prob[action], reward))
            step += 1
            if step % EVERY == 0:
                optimizer.zero_grad()
                update(net, [(a, r) for a, _, r in samples]).backward()
                optimizer.step()
                samples = []


class Memory:
    def __init__(self, size):
        self.inputs, self.size = torch.empty(0, 8).cuda(), size

    def add(self, inputs):
        self.inputs = torch.cat((self.inputs, inputs), dim=0)
        if len(self.inputs) > self.size:
            kept = torch.randperm(len(self.inputs))[: self.size]
            self.inputs = self.inputs[kept]


def learn(loader, net, optimizer):
    memory = Memory(500)
    for x, y in loader:
        memory.add(x.cuda())
        loss = nn.functional.cross_entropy(net(memory.inputs[:64]), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(model, loader, modalities, metric):
    logits = {}
    with torch.no_grad():
        for data in loader:
            out = model({m: data[m].cuda() for m in modalities})
            for m in modalities:
                logits[m] = out[m]
            metric(logits)
