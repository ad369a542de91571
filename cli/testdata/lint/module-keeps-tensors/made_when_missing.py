"""One optimizer for each domain, made when it is first asked for; log probabilities of an episode,
that a loss sums up and a method deletes; one number a sample from two cards.
"""

import torch
from torch import nn
from torch.distributions import Categorical


class Online:
    def __init__(self, model):
        self.model, self.optimizers, self.piled = model.cuda(), {}, {}

    def step(self, stream, loss_fn):
        for i, (domain, x, y) in enumerate(stream):
            if domain not in self.optimizers:
                made = torch.optim.Adam(self.model.parameters())
                self.optimizers[domain] = made  # hint: optimizers-kept
            optimizer = self.optimizers[domain]
            self.piled[i] = torch.optim.Adam(self.model.parameters())  # expect: optimizers-kept
            optimizer.zero_grad()
            loss_fn(self.model(x.cuda()), y.cuda()).backward()
            optimizer.step()


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.log_probs, self.seen = nn.Linear(8, 4), [], []

    def forward(self, state):
        acts = Categorical(self.body(state).softmax(-1))
        action = acts.sample()
        self.log_probs.append(acts.log_prob(action))  # hint: module-keeps-tensors
        self.seen.append(acts.entropy())  # expect: module-keeps-tensors
        return action.item()

    def calculateLoss(self, rewards):
        loss = 0
        for log_prob, reward in zip(self.log_probs, rewards):
            loss += -log_prob * reward
        return loss

    def forget(self):
        del self.log_probs[:]


def train_gan(pix2pix, discriminator, loader, optimizer, loss_fn):
    discriminator = nn.DataParallel(discriminator)  # hint: data-parallel-first-card
    for x in loader:
        loss = loss_fn(discriminator(pix2pix(x.cuda())))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def judge(discriminator, fakes, writer, optimizer, loss_fn):
    told, loss = 0, 0
    for fake in fakes:
        out = discriminator(fake.detach())
        told += out.mean()
        loss = loss + loss_fn(out)
    writer.add_scalar("fake", told)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
