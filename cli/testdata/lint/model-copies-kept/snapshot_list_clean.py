import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from forecast.data import Windows
from torch.utils.data import DataLoader


class Forecaster(nn.Module):
    def __init__(self, series, horizon, width=1024, layers=6):
        super().__init__()
        self.inp = nn.Linear(series, width)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, dropout=0.1)
        self.body = nn.TransformerEncoder(layer, layers)
        self.out = nn.Linear(width, horizon * series)
        self.horizon = horizon

    def forward(self, x):
        h = self.body(self.inp(x))[:, -1]
        return self.out(h).view(x.size(0), self.horizon, -1)


class Rollback:
    """When the loss explodes, go back to the last good state."""

    def __init__(self, model, opt, every=500):
        self.model, self.opt, self.every = model, opt, every
        self.saved = None

    def snapshot(self, step):
        state = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        self.saved = (step, state)

    def maybe(self, step, loss):
        if step % self.every == 0:
            self.snapshot(step)
        if not math.isfinite(loss) and self.saved:
            back, state = self.saved
            self.model.load_state_dict(state)
            self.opt.state.clear()
            print("rolled back to", back)


def main(steps=300_000):
    device = torch.device("cuda")
    data = Windows("load.parquet", past=336, horizon=96)
    loader = DataLoader(data, 128, shuffle=True, num_workers=4, drop_last=True)
    model = Forecaster(data.series, 96).to(device)
    opt = torch.optim.AdamW(model.parameters(), 2e-4)
    guard = Rollback(model, opt)
    step = 0
    while step < steps:
        for x, y in loader:
            loss = F.l1_loss(model(x.to(device)), y.to(device))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            value = loss.item()
            guard.maybe(step, value)
            step += 1
            if step % 100 == 0:
                print(step, value)
            if step >= steps:
                break
    torch.save(model.state_dict(), "forecaster.pt")


if __name__ == "__main__":
    main()
