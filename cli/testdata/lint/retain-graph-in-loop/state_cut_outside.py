"""A hidden state that the training loop cuts through the model: each sequence begins anew."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 8)
        self.out = nn.Linear(8, 4)
        self.hidden = (torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))

    def forward(self, x):
        y, self.hidden = self.rnn(x, self.hidden)
        return self.out(y[-1])


def train(sequences, rounds, size):
    net = Tagger()
    optimizer = torch.optim.Adam(net.parameters())
    for i in range(rounds):
        net.hidden = (net.hidden[0].detach(), net.hidden[1].detach())
        net.zero_grad()
        for k in range(size):
            x, y = sequences[i * size + k]
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward(retain_graph=True)  # hint: retain-graph-in-loop
        optimizer.step()
