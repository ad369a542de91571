import torch
from torch import nn

rnn = nn.GRU(8, 8).cuda()
head = nn.Linear(8, 2).cuda()
opt = torch.optim.Adam(list(rnn.parameters()) + list(head.parameters()))


def train(loader):
    state = None
    for x, y in loader:
        out, state = rnn(x, state)
        state = state.detach()
        loss = nn.functional.cross_entropy(head(out[-1]), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
