"""Pictures and captions: a symmetric loss over all pairs of the batch, a learnt scale."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)


class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        channels = [3, 32, 48, 64, 96]
        self.stages = nn.ModuleList()
        for a, b in zip(channels, channels[1:]):
            self.stages.append(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, 1, 1),
                    nn.GroupNorm(8, b),
                    nn.SiLU(),
                    nn.Conv2d(b, b, 3, 2, 1),
                    nn.SiLU(),
                )
            )
        self.end = nn.Linear(96, 64)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.end(x.mean((2, 3)))


class Caption(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.gru = nn.GRU(64, 64, batch_first=True)

    def forward(self, ids):
        return self.gru(self.words(ids))[0][:, -1]


picture, caption = Picture(), Caption()
scale = nn.Parameter(torch.tensor(2.0))
params = [*picture.parameters(), *caption.parameters(), scale]
opt = torch.optim.AdamW(params, 5e-4)
for step in range(4):
    x, ids = torch.rand(40, 3, 64, 64), torch.randint(0, 1000, (40, 12))
    a, b = F.normalize(picture(x), dim=-1), F.normalize(caption(ids), dim=-1)
    logits = scale.exp() * a @ b.T
    truth = torch.arange(len(x))
    loss = (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
