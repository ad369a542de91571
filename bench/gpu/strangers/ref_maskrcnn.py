"""Mask R-CNN in the manner of torchvision's detection reference: lists of images of different sizes, a dict of losses, warm-up in the first epoch, frozen norms."""
# tiny: --batch-size 1 --size 96 --trainable 3
import argparse
import math
import sys

import torch
import torchvision
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone


class CocoLike(torch.utils.data.Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        h, w = self.size, int(self.size * (1 + (i % 3) / 4))
        img, boxes, masks = torch.rand(3, h, w, generator=g), [], []
        for _ in range(2 + i % 4):
            x, y = (torch.rand(2, generator=g) * 0.5 * torch.tensor([w, h])).tolist()
            bw, bh = ((0.2 + 0.25 * torch.rand(2, generator=g)) * torch.tensor([w, h])).tolist()
            box = [int(x), int(y), int(x + bw), int(y + bh)]
            mask = torch.zeros(h, w, dtype=torch.uint8)
            mask[box[1]:box[3], box[0]:box[2]] = 1
            boxes.append(box)
            masks.append(mask)
        labels = torch.randint(1, 20, (len(boxes),), generator=g)
        return img, {"boxes": torch.tensor(boxes, dtype=torch.float32), "labels": labels, "masks": torch.stack(masks), "image_id": i}


def collate_fn(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, data_loader, device, epoch, scaler=None):
    model.train()
    lr_scheduler = None
    if epoch == 0:
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0 / 1000, total_iters=min(1000, len(data_loader) - 1))
    for i, (images, targets) in enumerate(data_loader):
        images = list(image.to(device) for image in images)
        targets = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
        with torch.amp.autocast(device.type, enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        loss_value = losses.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()
        print(f"step {epoch * len(data_loader) + i} loss {loss_value:.6f}", " ".join(f"{k} {v.item():.4f}" for k, v in loss_dict.items()), flush=True)


def main(args):
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone = resnet_fpn_backbone(backbone_name="resnet50", weights=None, norm_layer=torchvision.ops.FrozenBatchNorm2d, trainable_layers=args.trainable)
    for n, p in backbone.named_parameters():
        if p.dim() == 4 and "body" in n:
            p.data.mul_(0.7)
    model = MaskRCNN(backbone, 20, min_size=args.size, max_size=args.size * 2).to(device)
    loader = torch.utils.data.DataLoader(CocoLike(10 * args.batch_size, args.size), batch_size=args.batch_size, shuffle=True, collate_fn=collate_fn)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1], gamma=0.1)
    for epoch in range(2):
        train_one_epoch(model, optimizer, loader, device, epoch)
        scheduler.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--size", type=int, default=480)
    parser.add_argument("--trainable", type=int, default=4)
    main(parser.parse_args())
