"""A network whose outputs are pictures, on all cards."""

import torch
from torch import nn
from torch.nn import functional as F
from unets import UNet


class Trainer:
    def __init__(self, channels):
        unet = UNet(channels, channels)
        self.model = nn.DataParallel(unet).cuda()  # expect: data-parallel-first-card
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-4)

    def epoch(self, loader):
        for noisy, clear in loader:
            loss = F.l1_loss(self.model(noisy.cuda()), clear.cuda())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
