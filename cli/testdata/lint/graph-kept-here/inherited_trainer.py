import torch
from reader import batches
from torch import nn


class Base:
    def __init__(self, model):
        self.model = model
        self.history = {}
        self.opt = torch.optim.Adam(model.parameters())

    def track(self, name, value):
        self.history.setdefault(name, []).append(value)  # expect: graph-kept-here

    def fit(self):
        for i, batch in enumerate(batches()):
            out = self.step(batch)
            self.opt.zero_grad()
            out["total"].backward()
            self.opt.step()
            for k, v in out.items():
                self.track(k, v)  # expect: graph-kept-in-list


class VAETrainer(Base):
    def step(self, x):
        rec, mu, lv = self.model(x.cuda())
        r = nn.functional.mse_loss(rec, x.cuda())
        k = -0.5 * (1 + lv - mu.pow(2) - lv.exp()).sum(1).mean()
        return {"total": r + k, "rec": r, "kl": k}


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.d = nn.Linear(784, 64), nn.Linear(32, 784)

    def forward(self, x):
        mu, lv = self.e(x).chunk(2, 1)
        return self.d(mu + torch.randn_like(mu) * (0.5 * lv).exp()), mu, lv


VAETrainer(VAE().cuda()).fit()
