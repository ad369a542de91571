# Contrastive pairs: two towers called separately, the loss over the similarity matrix of the whole
# batch, learnt temperature, GradScaler with autocast to bf16 off. tiny: --dim 24 --depth 2 --batch
# 6 --size 32 --length 10 --device cpu --steps 4
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--dim", type=int, default=512)
parser.add_argument("--depth", type=int, default=6)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--size", type=int, default=192)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(0)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(
                    args.dim, 4, 4 * args.dim, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(args.depth)
            ]
        )
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Linear(args.dim, 256, bias=False)

    def forward(self, h):
        return F.normalize(self.head(self.norm(self.blocks(h)).mean(1)), dim=-1)


class ImageTower(Tower):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, args.dim, 16, 16)

    def forward(self, image):
        return super().forward(self.patch(image).flatten(2).transpose(1, 2))


class TextTower(Tower):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5000, args.dim)

    def forward(self, ids):
        return super().forward(self.embed(ids))


image_tower, text_tower = ImageTower().to(args.device), TextTower().to(args.device)
scale = nn.Parameter(torch.tensor(2.65, device=args.device))
parameters = list(image_tower.parameters()) + list(text_tower.parameters()) + [scale]
optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.98), weight_decay=0.2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)
scaler = torch.amp.GradScaler(args.device)
g = torch.Generator().manual_seed(9)
for step in range(args.steps):
    images, ids = (
        torch.randn(args.batch, 3, args.size, args.size, generator=g).to(args.device),
        torch.randint(0, 5000, (args.batch, args.length), generator=g).to(args.device),
    )
    optimizer.zero_grad()
    i, t = image_tower(images), text_tower(ids)
    logits = scale.exp() * i @ t.T
    labels = torch.arange(len(images), device=args.device)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    with torch.no_grad():
        scale.clamp_(0, 4.6052)
    print(
        "step %d loss %.9g top1 %.3f"
        % (step, loss.item(), (logits.argmax(1) == labels).float().mean().item()),
        flush=True,
    )
