"""
MLP-Mixer + Sharpness-Aware Minimization.
SAM class after github.com/davda54/sam, used through a closure.
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "SAM requires closure"
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()

    def _grad_norm(self):
        return torch.norm(
            torch.stack(
                [
                    p.grad.norm(p=2)
                    for group in self.param_groups
                    for p in group["params"]
                    if p.grad is not None
                ]
            ),
            p=2,
        )


class Mlp(nn.Module):
    def __init__(self, dim, hidden, drop):
        super().__init__()
        self.fc1, self.fc2, self.drop = (
            nn.Linear(dim, hidden),
            nn.Linear(hidden, dim),
            nn.Dropout(drop),
        )

    def forward(self, x):
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class MixerLayer(nn.Module):
    def __init__(self, dim, tokens, drop):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix = Mlp(tokens, tokens * 2, drop)
        self.channel_mix = Mlp(dim, dim * 4, drop)

    def forward(self, x):
        x = x + self.token_mix(self.ln1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.ln2(x))


class Mixer(nn.Module):
    def __init__(self, size, patch, dim, depth, classes, drop=0.1):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.layers = nn.Sequential(
            *[MixerLayer(dim, (size // patch) ** 2, drop) for _ in range(depth)]
        )
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(x)).mean(1))


def data(n_batches, bs, size, classes):
    g = torch.Generator().manual_seed(2)
    for _ in range(n_batches):
        y = torch.randint(0, classes, (bs,), generator=g)
        x = torch.randn(bs, 3, size, size, generator=g)
        x[:, :, : size // 2] += (y / classes * 2 - 1)[:, None, None, None]
        yield x, y


def main():
    small = os.environ.get("SMALL") == "1"
    c = (
        dict(size=32, patch=8, dim=24, depth=2, classes=5)
        if small
        else dict(size=128, patch=8, dim=384, depth=8, classes=100)
    )
    bs, steps = (4, 12) if small else (128, 15)
    torch.manual_seed(2)
    torch.backends.cudnn.deterministic = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Mixer(**c).to(device)
    optimizer = SAM(
        model.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9, weight_decay=5e-4
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, T_max=steps)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    model.train()
    for step, (x, y) in enumerate(data(steps, bs, c["size"], c["classes"])):
        x, y = x.to(device), y.to(device)

        def closure():
            loss = criterion(model(x), y)
            loss.backward()
            return loss

        loss = closure()
        optimizer.step(closure)
        optimizer.zero_grad()
        scheduler.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
