from dataclasses import dataclass, field

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


@dataclass
class State:
    step: int = 0
    losses: list = field(default_factory=list)


def train(loader, state: State):
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        state.step += 1
        state.losses.append(loss)  # expect: graph-kept-in-list
