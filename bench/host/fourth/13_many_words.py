"""A wide table of words and a small network: most of what it takes is the table, its gradient and
what Adam keeps for it.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(43)
torch.set_num_threads(1)


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.things = nn.Embedding(300000, 64)
        self.body = nn.Sequential(
            nn.Linear(26 * 64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, which):
        return self.body(self.things(which).flatten(1)).squeeze(1)


model = Scores()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(3):
    which, clicked = torch.randint(0, 300000, (16384, 26)), torch.rand(16384).round()
    loss = F.binary_cross_entropy_with_logits(model(which), clicked)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
