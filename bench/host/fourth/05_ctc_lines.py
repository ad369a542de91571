"""Lines of handwriting: convolutions with GroupNorm, a recurrent layer, CTC with uneven lengths."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(35)
torch.set_num_threads(1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [1, 24, 48, 64]
        self.front = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.ReLU())
                for a, b in zip(sizes, sizes[1:])
            ]
        )
        self.recurrent = nn.LSTM(64 * 4, 96, bidirectional=True, batch_first=True)
        self.head = nn.Linear(192, 60)

    def forward(self, x):
        x = F.max_pool2d(self.front[0](x), 2)
        x = F.max_pool2d(self.front[1](x), (2, 1))
        x = F.max_pool2d(self.front[2](x), (2, 1))
        x = x.flatten(1, 2).transpose(1, 2)
        return self.head(self.recurrent(x)[0]).log_softmax(-1)


model = Reader()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(3):
    lines = torch.rand(48, 1, 32, 256)
    words = torch.randint(5, 25, (48,))
    letters = torch.randint(1, 60, (48, 25))
    wide = torch.randint(100, 129, (48,))
    told = model(lines).transpose(0, 1)
    loss = F.ctc_loss(told, letters, wide, words, zero_infinity=True)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
