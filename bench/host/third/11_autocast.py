"""bfloat16 autocast on the CPU with a GradScaler that is switched off, as copied loops have it."""

import torch
from torch import nn

torch.manual_seed(14)
torch.set_num_threads(1)


class Patch(nn.Module):
    def __init__(self, width=192, depth=5):
        super().__init__()
        self.cut = nn.Conv2d(3, width, 8, 8)
        self.place = nn.Parameter(torch.zeros(1, 64, width))
        layer = nn.TransformerEncoderLayer(width, 6, 3 * width, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 20)

    def forward(self, x):
        x = self.cut(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.body(x).mean(1))


model = Patch()
opt = torch.optim.AdamW(model.parameters(), 3e-4)
scaler = torch.amp.GradScaler("cpu", enabled=False)
for step in range(4):
    x, y = torch.rand(64, 3, 64, 64), torch.randint(0, 20, (64,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    print("step %d loss %.8g" % (step, loss.float().item()), flush=True)
