"""DataParallel around a model and its heads is one decision; around a loss it is the cure. Outputs
as large as the inputs are what fills the first card.
"""

import torch
from torch import nn


def restore_names(net, state):
    if all(k.startswith("module.") for k in state):
        net = nn.DataParallel(net)
    net.load_state_dict(state)
    return net


def train_segmentation(body, rotation, jigsaw, loader, criterion):
    body = nn.DataParallel(body)  # expect: data-parallel-first-card
    rotation = nn.DataParallel(rotation)
    jigsaw = nn.DataParallel(jigsaw)
    criterion = nn.DataParallel(criterion)
    optimizer = torch.optim.SGD(body.parameters(), 0.1)
    for x, y, z in loader:
        h = body(x)
        loss = criterion(rotation(h), y).mean() + criterion(jigsaw(h), z).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
