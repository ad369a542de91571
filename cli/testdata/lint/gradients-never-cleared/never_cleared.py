"""A loop that steps and never clears: nothing in this file does."""
import torch
from torch import nn

model = nn.Linear(8, 1)
opt = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler()
scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)


def train(loader):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()  # expect: gradients-never-cleared
        scheduler.step()
