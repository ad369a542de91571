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
