"""Few-shot learning with prototypical networks: a ResNet-12 and episodes of changing way."""

import random

import torch
from torch import nn

use_cuda = torch.cuda.is_available()
dev = torch.device("cuda" if use_cuda else "cpu")
WIDTHS = (64, 128, 256, 512) if use_cuda else (4, 8, 8, 16)
SIDE = 84 if use_cuda else 32
WAYS = (6, 10) if use_cuda else (2, 3)
SHOT, QUERY = (5, 10) if use_cuda else (2, 2)
UPDATES, EPISODES_PER_UPDATE = (8, 2) if use_cuda else (2, 2)
N_CLASSES = 40


def conv_bn(cin, cout, k=3):
    return nn.Sequential(nn.Conv2d(cin, cout, k, padding=k // 2, bias=False), nn.BatchNorm2d(cout))


class Stage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.a, self.b, self.c = conv_bn(cin, cout), conv_bn(cout, cout), conv_bn(cout, cout)
        self.short = conv_bn(cin, cout, 1)
        self.act = nn.LeakyReLU(0.1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        h = self.c(self.act(self.b(self.act(self.a(x)))))
        return self.pool(self.act(h + self.short(x)))


class Encoder(nn.Sequential):
    def __init__(self):
        chans = (3, *WIDTHS)
        super().__init__(
            *[Stage(a, b) for a, b in zip(chans[:-1], chans[1:], strict=True)],
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


torch.manual_seed(17)
rnd = random.Random(17)
textures = torch.randn(N_CLASSES, 3, SIDE, SIDE, device=dev)
encoder = Encoder().to(dev)
scale = nn.Parameter(torch.tensor(1.0, device=dev))
optimizer = torch.optim.SGD(
    [
        {"params": encoder.parameters(), "weight_decay": 5e-4},
        {"params": [scale], "lr": 0.001},
    ],
    lr=0.01,
    momentum=0.9,
    nesterov=True,
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)


def episode(classes):
    way = rnd.randint(*WAYS)
    picked = rnd.sample(classes, way)
    base = textures[picked].unsqueeze(1)
    noise = torch.randn(way, SHOT + QUERY, 3, SIDE, SIDE, device=dev)
    x = (0.5 * base + noise).flatten(0, 1)
    return x, way


def episode_loss(x, way):
    z = encoder(x).view(way, SHOT + QUERY, -1)
    protos = z[:, :SHOT].mean(1)
    queries = z[:, SHOT:].flatten(0, 1)
    logits = -scale * torch.cdist(queries, protos).pow(2) / z.shape[-1]
    target = torch.arange(way, device=dev).repeat_interleave(QUERY)
    acc = (logits.argmax(1) == target).float().mean()
    return nn.functional.cross_entropy(logits, target), acc


train_classes, test_classes = list(range(30)), list(range(30, N_CLASSES))
for update in range(UPDATES):
    optimizer.zero_grad()
    for _ in range(EPISODES_PER_UPDATE):
        x, way = episode(train_classes)
        loss, acc = episode_loss(x, way)
        (loss / EPISODES_PER_UPDATE).backward()
        print(f"update {update} way {way} loss {loss.item():.6f} acc {acc.item():.3f}", flush=True)
    optimizer.step()
    scheduler.step()

encoder.eval()
with torch.no_grad():
    for _ in range(2):
        loss, acc = episode_loss(*episode(test_classes))
        print(f"novel classes: loss {loss.item():.6f} acc {acc.item():.3f}", flush=True)
