from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from zoo import Net, batches


@dataclass
class Progress:
    step: int = 0
    total: float = 0.0
    recent: list = field(default_factory=list)

    def advance(self, loss):
        self.step += 1
        self.total = self.total + loss  # expect: graph-kept-here

    @property
    def mean(self):
        return self.total / max(self.step, 1)


net = Net().to("cuda")
optim = torch.optim.SGD(net.parameters(), lr=0.1)
progress = Progress()
for x, y in batches():
    optim.zero_grad()
    loss = F.mse_loss(net(x.to("cuda")), y.to("cuda"))
    loss.backward()
    optim.step()
    progress.advance(loss)  # expect: graph-kept-in-list
print(float(progress.mean))


@dataclass
class ProgressClean:
    step: int = 0
    total: float = 0.0
    recent: list = field(default_factory=list)

    def advance(self, loss_clean):
        self.step += 1
        self.total = self.total + loss_clean.detach()

    @property
    def mean(self):
        return self.total / max(self.step, 1)


progress_clean = ProgressClean()
for x_clean, y_clean in batches():
    optim.zero_grad()
    loss_clean = F.mse_loss(net(x_clean.to("cuda")), y_clean.to("cuda"))
    loss_clean.backward()
    optim.step()
    progress_clean.advance(loss_clean)
print(float(progress_clean.mean))
