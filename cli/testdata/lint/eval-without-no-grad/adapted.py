"""A learner that adapts takes gradients inside of its forward pass."""

import torch
from methods.maml import MAML


def evaluated(backbone, test_loader):
    model = MAML(backbone).cuda()
    model.eval()
    torch.manual_seed(0)
    for x, y in test_loader:
        scores = model(x.cuda())  # hint: eval-without-no-grad
        print((scores.argmax(1).cpu() == y).float().mean().item())
