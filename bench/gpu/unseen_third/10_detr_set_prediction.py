"""Object queries and a matched set loss, after DETR. Losses of all decoder layers, divided by the
number of boxes in the batch. Matching by the cheapest pair first so that scipy is not needed."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
DEV = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BS, SIDE, D, Q, CLASSES = (2, 64, 32, 8, 4) if SMALL else (12, 640, 256, 100, 80)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        w = 8 if SMALL else 64

        def stage(i, o, n):
            seq = [nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
            for _ in range(n):
                seq += [nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]
            return nn.Sequential(*seq)

        self.net = nn.Sequential(
            stage(3, w, 0), stage(w, w * 2, 1), stage(w * 2, w * 4, 2), stage(w * 4, w * 8, 2)
        )
        self.proj = nn.Conv2d(w * 8, D, 1)

    def forward(self, x):
        return self.proj(self.net(x))


class DETR(nn.Module):
    def __init__(self, layers=2 if SMALL else 4):
        super().__init__()
        self.backbone = Backbone()
        enc = nn.TransformerEncoderLayer(D, 8, D * 4, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(enc, layers, enable_nested_tensor=False)
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(D, 8, D * 4, 0.1, batch_first=True) for _ in range(layers)
        )
        self.queries = nn.Embedding(Q, D)
        self.row, self.col = (
            nn.Parameter(torch.rand(64, D // 2)),
            nn.Parameter(torch.rand(64, D // 2)),
        )
        self.cls = nn.Linear(D, CLASSES + 1)
        self.box = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 4))

    def forward(self, images, mask):
        f = self.backbone(images)
        b, _, h, w = f.shape
        mask = F.interpolate(mask[:, None].float(), size=(h, w)).bool().flatten(1)
        pos = torch.cat(
            [self.col[:w].repeat(h, 1, 1), self.row[:h].unsqueeze(1).repeat(1, w, 1)], dim=-1
        )
        tokens = f.flatten(2).transpose(1, 2) + pos.view(1, h * w, D)
        memory = self.encoder(tokens, src_key_padding_mask=mask)
        x = self.queries.weight.unsqueeze(0).repeat(b, 1, 1)
        outputs = []
        for layer in self.decoder:
            x = layer(x, memory, memory_key_padding_mask=mask)
            outputs.append({"logits": self.cls(x), "boxes": self.box(x).sigmoid()})
        return outputs


def corners(b):
    cx, cy, w, h = b.unbind(-1)
    return torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1)


def giou(a, b):
    """Pairwise."""
    area = lambda z: (z[:, 2] - z[:, 0]) * (z[:, 3] - z[:, 1])
    lt, rb = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    union = area(a)[:, None] + area(b)[None] - inter
    lt, rb = torch.min(a[:, None, :2], b[None, :, :2]), torch.max(a[:, None, 2:], b[None, :, 2:])
    hull = (rb - lt).clamp(min=0).prod(-1)
    return inter / union - (hull - union) / hull


def greedy_match(cost):
    """Cheapest pair first; on the CPU."""
    cost, pairs = cost.detach().cpu().clone(), []
    for _ in range(cost.size(1)):
        flat = int(cost.argmin())
        q, t = divmod(flat, cost.size(1))
        pairs.append((q, t))
        cost[q, :], cost[:, t] = 1e9, 1e9
    return torch.tensor(pairs).t()


def layer_loss(out, targets, num_boxes):
    cls_target = torch.full(out["logits"].shape[:2], CLASSES, device=DEV)
    l1, gi = 0.0, 0.0
    for i, t in enumerate(targets):
        prob, boxes = out["logits"][i].softmax(-1), out["boxes"][i]
        with torch.no_grad():
            cost = 5 * torch.cdist(boxes, t["boxes"], p=1) - prob[:, t["labels"]]
            cost = cost - 2 * giou(corners(boxes), corners(t["boxes"]))
        q, k = greedy_match(cost)
        q, k = q.to(DEV), k.to(DEV)
        cls_target[i, q] = t["labels"][k]
        l1 = l1 + F.l1_loss(boxes[q], t["boxes"][k], reduction="sum")
        gi = gi + (1 - giou(corners(boxes[q]), corners(t["boxes"][k])).diagonal()).sum()
    w = torch.ones(CLASSES + 1, device=DEV)
    w[-1] = 0.1
    ce = F.cross_entropy(out["logits"].transpose(1, 2), cls_target, w)
    return ce + 5 * l1 / num_boxes + 2 * gi / num_boxes


def batch(g):
    images = torch.zeros(BS, 3, SIDE, SIDE)
    mask = torch.ones(BS, SIDE, SIDE, dtype=torch.bool)
    targets = []
    for i in range(BS):
        h, w = (int(torch.randint(SIDE * 2 // 3, SIDE + 1, (1,), generator=g)) for _ in range(2))
        images[i, :, :h, :w] = torch.randn(3, h, w, generator=g)
        mask[i, :h, :w] = False
        n = int(torch.randint(1, 7, (1,), generator=g))
        boxes = torch.rand(n, 4, generator=g) * 0.4 + 0.1
        labels = torch.randint(0, CLASSES, (n,), generator=g)
        targets.append({"boxes": boxes.to(DEV), "labels": labels.to(DEV)})
    return images.to(DEV), mask.to(DEV), targets


def main():
    torch.manual_seed(0)
    model = DETR().to(DEV)
    slow = list(model.backbone.parameters())
    rest = [p for n, p in model.named_parameters() if not n.startswith("backbone")]
    opt = torch.optim.AdamW([{"params": slow, "lr": 1e-5}, {"params": rest}], lr=1e-4)
    g = torch.Generator().manual_seed(42)
    for step in range(14):
        images, mask, targets = batch(g)
        num_boxes = sum(len(t["labels"]) for t in targets)
        outputs = model(images, mask)
        loss = sum(layer_loss(o, targets, num_boxes) for o in outputs)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
