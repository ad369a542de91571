"""EfficientNet-like classifier: label smoothing, stochastic depth, EMA of the weights,
RMSprop, channels_last and bfloat16. The EMA model is looked at every few steps."""

import os

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SMALL = os.environ.get("SMALL") == "1"
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False


class SqueezeExcite(nn.Module):
    def __init__(self, c, r):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(c, r), nn.SiLU(), nn.Linear(r, c), nn.Sigmoid())

    def forward(self, x):
        return x * self.fc(x.mean((2, 3)))[:, :, None, None]


class MBConv(nn.Module):
    def __init__(self, c_in, c_out, stride, expand, drop):
        super().__init__()
        mid = c_in * expand
        self.body = nn.Sequential(
            nn.Conv2d(c_in, mid, 1, bias=False),
            nn.BatchNorm2d(mid, momentum=0.01),
            nn.SiLU(inplace=True),
            nn.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False),
            nn.BatchNorm2d(mid, momentum=0.01),
            nn.SiLU(inplace=True),
            SqueezeExcite(mid, max(4, c_in // 4)),
            nn.Conv2d(mid, c_out, 1, bias=False),
            nn.BatchNorm2d(c_out, momentum=0.01),
        )
        self.residual, self.drop = stride == 1 and c_in == c_out, drop

    def forward(self, x):
        y = self.body(x)
        if not self.residual:
            return y
        if self.training and self.drop > 0:
            keep = 1 - self.drop
            y = y * torch.empty(len(y), 1, 1, 1, device=y.device).bernoulli_(keep) / keep
        return x + y


class Net(nn.Module):
    def __init__(self, stages, classes, head):
        super().__init__()
        c = stages[0][0]
        layers = [nn.Conv2d(3, c, 3, 2, 1, bias=False), nn.BatchNorm2d(c), nn.SiLU(inplace=True)]
        depth, seen = sum(s[1] for s in stages), 0
        for width, n, stride, expand in stages:
            for i in range(n):
                layers.append(MBConv(c, width, stride if i == 0 else 1, expand, 0.2 * seen / depth))
                c, seen = width, seen + 1
        layers += [nn.Conv2d(c, head, 1, bias=False), nn.BatchNorm2d(head), nn.SiLU(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(head, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def main():
    torch.manual_seed(123)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if SMALL:
        batch, size, classes, steps = 4, 32, 10, 8
        stages, head = [(8, 1, 1, 2), (16, 2, 2, 2)], 32
    else:
        batch, size, classes, steps = 144, 176, 1000, 12
        stages = [(32, 2, 1, 3), (48, 3, 2, 4), (80, 3, 2, 6), (160, 4, 2, 6), (256, 2, 2, 6)]
        head = 1280
    g = torch.Generator().manual_seed(8)
    protos = torch.randn(classes, 3, 8, 8, generator=g)

    def load(n):
        y = torch.randint(0, classes, (n,), generator=g)
        x = nn.functional.interpolate(protos[y], size=(size, size), mode="nearest")
        x = x + 0.5 * torch.randn(x.shape, generator=g)
        return x.to(device, memory_format=torch.channels_last), y.to(device)

    model = Net(stages, classes, head).to(device, memory_format=torch.channels_last)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-3, alpha=0.9, momentum=0.9, eps=1e-3, weight_decay=1e-5
    )
    held_x, held_y = load(batch // 4)
    for step in range(steps):
        model.train()
        x, y = load(batch)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        print(f"step {step} loss {loss.item():.8f}", flush=True)
        if step % 4 == 3:
            ema.eval()
            with torch.no_grad():
                held = nn.functional.cross_entropy(ema(held_x), held_y)
            print(f"  ema held-out {held.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
