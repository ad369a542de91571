"""Instance segmentation of synthetic shapes with torchvision's Mask R-CNN, images of all sizes."""

import random

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import maskrcnn_resnet50_fpn

CUDA = torch.cuda.is_available()
SIZES = (400, 560) if CUDA else (64, 96)
BATCH = 6 if CUDA else 2
STEPS = 10 if CUDA else 3


class Shapes(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rnd = random.Random(1000 + i)
        gen = torch.Generator().manual_seed(1000 + i)
        h, w = rnd.randint(*SIZES), rnd.randint(*SIZES)
        image = 0.3 * torch.rand(3, h, w, generator=gen)
        yy, xx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        boxes, labels, masks = [], [], []
        for _ in range(rnd.randint(2, 6)):
            r = rnd.randint(min(h, w) // 12, min(h, w) // 5)
            cy, cx = rnd.randint(r, h - r - 1), rnd.randint(r, w - r - 1)
            if rnd.random() < 0.5:
                mask, label = (yy - cy) ** 2 + (xx - cx) ** 2 <= r * r, 1
            else:
                mask, label = ((yy - cy).abs() <= r) & ((xx - cx).abs() <= r), 2
            image[:, mask] = torch.rand(3, 1, generator=gen)
            boxes.append([cx - r, cy - r, cx + r, cy + r])
            labels.append(label)
            masks.append(mask)
        target = {
            "boxes": torch.tensor(boxes, dtype=torch.float32),
            "labels": torch.tensor(labels),
            "masks": torch.stack(masks).to(torch.uint8),
        }
        return image, target


def collate(batch):
    return tuple(zip(*batch, strict=True))


def warmup(step, n=5):
    return 0.01 + 0.99 * min(1.0, step / n)


def main():
    torch.manual_seed(66)
    device = torch.device("cuda" if CUDA else "cpu")
    model = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=3,
        min_size=SIZES[0] + 80 if CUDA else 64,
        max_size=800 if CUDA else 96,
        rpn_pre_nms_top_n_train=1000 if CUDA else 50,
        rpn_post_nms_top_n_train=500 if CUDA else 20,
        box_batch_size_per_image=256 if CUDA else 16,
    ).to(device)
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.002, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)
    loader = DataLoader(
        Shapes(BATCH * STEPS), batch_size=BATCH, collate_fn=collate, num_workers=2 if CUDA else 0
    )
    for step, (images, targets) in enumerate(loader):
        images = [im.to(device) for im in images]
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        parts = model(images, targets)
        loss = sum(parts.values())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 5.0)
        optimizer.step()
        scheduler.step()
        text = " ".join(f"{k[5:]} {v.item():.3f}" for k, v in parts.items())
        print(f"step {step} loss {loss.item():.6f} | {text}", flush=True)


if __name__ == "__main__":
    main()
