"""Handwritten lines by CTC, reduction="sum" over the lengths, GRU over columns, no BatchNorm."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(11)
torch.set_num_threads(1)


class Lines(nn.Module):
    def __init__(self, classes=40):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(),
            nn.Conv2d(24, 32, 3, (2, 1), 1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU(),
        )  # fmt: skip
        self.gru = nn.GRU(32 * 8, 96, bidirectional=True, batch_first=True)
        self.out = nn.Linear(192, classes)

    def forward(self, pictures):
        h = self.features(pictures).permute(0, 3, 1, 2).flatten(2)
        return self.out(self.gru(h)[0])


def lines(n=24):
    widths = torch.randint(120, 240, (n,))
    pictures = torch.zeros(n, 1, 32, int(widths.max()))
    for picture, width in zip(pictures, widths):
        picture[..., :width] = torch.rand(1, 32, int(width))
    sizes = torch.randint(5, 25, (n,))
    words = torch.randint(1, 40, (n, 25))
    return pictures, (widths + 1) // 2, words, sizes


net = Lines()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for i in range(4):
    pictures, widths, words, sizes = lines()
    optimizer.zero_grad()
    scores = F.log_softmax(net(pictures), -1).transpose(0, 1)
    loss = F.ctc_loss(scores, words, widths, sizes, reduction="sum") / sizes.sum()
    loss.backward()
    optimizer.step()
    print(f"iteration {i} loss {loss.item():.8g}", flush=True)
