"""Anchor-free detector (FCOS): ResNet-50 FPN, shared heads, focal + GIoU + centerness losses."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEIGHT, WIDTH, BATCH = (128, 128, 1) if SMALL else (384, 512, 12)
CLASSES, TOWER, STEPS = (5, 1, 8) if SMALL else (80, 4, 10)
STRIDES = (8, 16, 32, 64, 128)
RANGES = ((0, 64), (64, 128), (128, 256), (256, 512), (512, 1e8))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.s


def tower():
    layers = []
    for _ in range(TOWER):
        layers += [nn.Conv2d(256, 256, 3, padding=1), nn.GroupNorm(32, 256), nn.ReLU()]
    return nn.Sequential(*layers)


class FCOS(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = resnet_fpn_backbone(
            backbone_name="resnet18" if SMALL else "resnet50",
            weights=None,
            norm_layer=nn.BatchNorm2d,
            trainable_layers=5,
            returned_layers=[2, 3, 4],
            extra_blocks=LastLevelP6P7(256, 256),
        )
        self.cls_tower, self.box_tower = tower(), tower()
        self.cls = nn.Conv2d(256, CLASSES, 3, padding=1)
        self.box = nn.Conv2d(256, 4, 3, padding=1)
        self.ctr = nn.Conv2d(256, 1, 3, padding=1)
        self.scales = nn.ModuleList(Scale() for _ in STRIDES)
        nn.init.constant_(self.cls.bias, -4.595)
        for m in (self.cls, self.box, self.ctr):
            nn.init.normal_(m.weight, std=0.01)

    def forward(self, images):
        cls, box, ctr, points, level = [], [], [], [], []
        for k, (f, stride) in enumerate(zip(self.backbone(images).values(), STRIDES)):
            c, b = self.cls_tower(f), self.box_tower(f)
            cls.append(self.cls(c).flatten(2).transpose(1, 2))
            dist = self.scales[k](self.box(b)).clamp(max=5).exp() * stride
            box.append(dist.flatten(2).transpose(1, 2))
            ctr.append(self.ctr(b).flatten(2).transpose(1, 2))
            ys = torch.arange(f.size(2), device=f.device) * stride + stride // 2
            xs = torch.arange(f.size(3), device=f.device) * stride + stride // 2
            grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1], -1).view(-1, 2)
            points.append(grid.float())
            level.append(torch.full((len(grid),), k, device=f.device))
        cat = lambda xs: torch.cat(xs, 1)  # noqa: E731
        return cat(cls), cat(box), cat(ctr).squeeze(-1), torch.cat(points), torch.cat(level)


@torch.no_grad()
def assign(points, level, boxes, labels):
    """Smallest box that holds the point and fits its level, else background (-1)."""
    lt = points[:, None] - boxes[None, :, :2]
    rb = boxes[None, :, 2:] - points[:, None]
    ltrb = torch.cat([lt, rb], -1)
    inside = ltrb.amin(-1) > 0
    lo = torch.tensor([r[0] for r in RANGES], device=points.device)[level][:, None]
    hi = torch.tensor([r[1] for r in RANGES], device=points.device)[level][:, None]
    size = ltrb.amax(-1)
    area = ((boxes[:, 2:] - boxes[:, :2]).prod(1)).expand(len(points), -1).clone()
    area[~(inside & (size >= lo) & (size < hi))] = float("inf")
    smallest, which = area.min(1)
    cls = torch.where(smallest.isinf(), -1, labels[which])
    return cls, ltrb[torch.arange(len(points), device=points.device), which]


def decode(points, ltrb):
    return torch.cat([points - ltrb[:, :2], points + ltrb[:, 2:]], 1)


def criterion(out, targets):
    cls, box, ctr, points, level = out
    assigned = [assign(points, level, *t) for t in targets]
    label = torch.stack([a[0] for a in assigned])
    ltrb = torch.stack([a[1] for a in assigned])
    pos = label >= 0
    n = pos.sum().clamp(min=1)
    hot = F.one_hot(label.clamp(min=0), CLASSES) * pos.unsqueeze(-1)
    loss_cls = sigmoid_focal_loss(cls, hot.float(), reduction="sum") / n
    where = points.expand(len(label), -1, -1)[pos]
    t = ltrb[pos]
    lr, tb = t[:, 0::2], t[:, 1::2]
    centre = (lr.amin(1) / lr.amax(1) * tb.amin(1) / tb.amax(1)).sqrt()
    giou = generalized_box_iou_loss(decode(where, box[pos]), decode(where, t))
    loss_box = (giou * centre).sum() / centre.sum().clamp(min=1e-6)
    loss_ctr = F.binary_cross_entropy_with_logits(ctr[pos], centre, reduction="sum") / n
    return loss_cls, loss_box, loss_ctr


def batch(g):
    images = 0.2 * torch.randn(BATCH, 3, HEIGHT, WIDTH, generator=g)
    targets = []
    for image in images:
        k = int(torch.randint(2, 12, (1,), generator=g))
        xy = torch.rand(k, 2, generator=g) * torch.tensor([WIDTH * 0.7, HEIGHT * 0.7])
        wh = 20 + torch.rand(k, 2, generator=g) * torch.tensor([WIDTH * 0.4, HEIGHT * 0.4])
        boxes = torch.cat([xy, xy + wh], 1)
        boxes[:, 0::2].clamp_(max=WIDTH - 1)
        boxes[:, 1::2].clamp_(max=HEIGHT - 1)
        labels = torch.randint(0, CLASSES, (k,), generator=g)
        for (x0, y0, x1, y1), c in zip(boxes.int().tolist(), labels.tolist()):
            image[c % 3, y0:y1, x0:x1] += 0.3 + c / CLASSES
        targets.append((boxes.to(DEVICE), labels.to(DEVICE)))
    return images.to(DEVICE), targets


def main():
    torch.manual_seed(70)
    torch.backends.cudnn.deterministic = True
    model = FCOS().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    g = torch.Generator().manual_seed(71)
    for step in range(STEPS):
        images, targets = batch(g)
        parts = criterion(model(images), targets)
        loss = sum(parts)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        warmup.step()
        detail = " ".join(f"{p.item():.4f}" for p in parts)
        print(f"step {step} loss {loss.item():.8f} parts {detail}", flush=True)


if __name__ == "__main__":
    main()
