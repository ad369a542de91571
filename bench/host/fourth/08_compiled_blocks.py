"""A mixer whose forward pass is compiled; activations are most of what it takes."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(38)
torch.set_num_threads(1)
torch._inductor.config.compile_threads = 1


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(128), nn.LayerNorm(128)
        self.across = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.along = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))

    def forward(self, x):
        x = x + self.across(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.n2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(48, 128)
        self.blocks = nn.ModuleList(Mix() for _ in range(8))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        x = self.patch(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


model = torch.compile(Mixer())
opt = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
for step in range(4):
    x, y = torch.randn(320, 64, 48), torch.randint(0, 10, (320,))
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
