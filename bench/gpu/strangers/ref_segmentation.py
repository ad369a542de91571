"""Semantic segmentation in the manner of torchvision's references: FCN (or DeepLab) with an
auxiliary head, its dict of outputs, ignored pixels, a confusion matrix.
"""

# tiny: --batch-size 2 --crop 65 --model deeplabv3_mobilenet_v3_large
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


class VOCLike(torch.utils.data.Dataset):
    def __init__(self, n, crop, classes):
        self.n, self.crop, self.classes = n, crop, classes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        h, w = self.crop - i % 3, self.crop - i % 2
        target = (
            torch.randint(0, self.classes, (h // 8 + 1, w // 8 + 1), generator=g)
            .repeat_interleave(8, 0)
            .repeat_interleave(8, 1)[:h, :w]
        )
        target = torch.where(torch.rand(h, w, generator=g) < 0.1, 255, target)
        return torch.randn(3, h, w, generator=g), target


def cat_list(images, fill_value=0):
    max_size = tuple(max(s) for s in zip(*[img.shape for img in images]))
    batched = images[0].new(len(images), *max_size).fill_(fill_value)
    for img, pad in zip(images, batched):
        pad[..., : img.shape[-2], : img.shape[-1]].copy_(img)
    return batched


def collate_fn(batch):
    images, targets = list(zip(*batch))
    return cat_list(images), cat_list(targets, fill_value=255)


class ConfusionMatrix:
    def __init__(self, n):
        self.n, self.mat = n, None

    def update(self, a, b):
        if self.mat is None:
            self.mat = torch.zeros((self.n, self.n), dtype=torch.int64, device=a.device)
        with torch.inference_mode():
            k = (a >= 0) & (a < self.n)
            self.mat += torch.bincount(
                self.n * a[k].to(torch.int64) + b[k], minlength=self.n**2
            ).reshape(self.n, self.n)

    def mean_iou(self):
        h = self.mat.float()
        return (torch.diag(h) / (h.sum(1) + h.sum(0) - torch.diag(h))).nanmean().item()


def criterion(inputs, target):
    losses = {name: F.cross_entropy(x, target, ignore_index=255) for name, x in inputs.items()}
    if len(losses) == 1:
        return losses["out"]
    return losses["out"] + 0.5 * losses["aux"]


def train_one_epoch(
    model, criterion, optimizer, data_loader, lr_scheduler, device, epoch, scaler=None
):
    model.train()
    for i, (image, target) in enumerate(data_loader):
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast(device.type, enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        lr_scheduler.step()
        print("step %d loss %.6f" % (epoch * len(data_loader) + i, loss.item()), flush=True)


def evaluate(model, data_loader, device, num_classes):
    model.eval()
    confmat = ConfusionMatrix(num_classes)
    with torch.inference_mode():
        for image, target in data_loader:
            output = model(image.to(device))["out"]
            confmat.update(target.to(device).flatten(), output.argmax(1).flatten())
    print("mean IoU %.4f" % confmat.mean_iou())


def main(args):
    torch.manual_seed(11)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = VOCLike(10 * args.batch_size, args.crop, 21)
    data_loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        collate_fn=collate_fn,
        drop_last=True,
        num_workers=args.workers,
    )
    data_loader_test = torch.utils.data.DataLoader(
        VOCLike(8, args.crop, 21), batch_size=1, collate_fn=collate_fn
    )
    model = torchvision.models.get_model(
        args.model, weights=None, weights_backbone=None, num_classes=21, aux_loss=True
    ).to(device)
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    groups = [
        {"params": [p for p in model.backbone.parameters() if p.requires_grad]},
        {"params": [p for p in model.classifier.parameters() if p.requires_grad]},
        {
            "params": [p for p in model.aux_classifier.parameters() if p.requires_grad],
            "lr": args.lr * 10,
        },
    ]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler() if args.amp else None
    total = len(data_loader) * 2
    lr_scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total, power=0.9)
    for epoch in range(2):
        train_one_epoch(
            model, criterion, optimizer, data_loader, lr_scheduler, device, epoch, scaler
        )
        evaluate(model, data_loader_test, device, 21)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--crop", type=int, default=360)
    parser.add_argument(
        "--model", default="fcn_resnet50"
    )  # DeepLab's pooled branch normalizes eight numbers: it makes 1e-3 of any rounding
    parser.add_argument("--lr", type=float, default=0.0002)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--amp", action="store_true")
    main(parser.parse_args())
