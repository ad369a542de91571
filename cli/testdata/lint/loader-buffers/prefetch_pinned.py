import argparse

import torch
import torch.nn as nn
from clips.data import ClipDataset
from torch.utils.data import DataLoader
from torchvision.models.video import r2plus1d_18


def make_loaders(root, batch, workers):
    common = dict(batch_size=batch, num_workers=workers, pin_memory=True, persistent_workers=True)
    train = DataLoader(
        ClipDataset(root, "train", frames=32, size=224),
        shuffle=True,
        drop_last=True,
        prefetch_factor=64,  # expect: loader-buffers
        **common,
    )
    val = DataLoader(ClipDataset(root, "val", frames=32, size=224), prefetch_factor=2, **common)
    return train, val


class Topk:
    def __init__(self, k=5):
        self.k = k
        self.hit = self.n = 0

    def add(self, logits, target):
        top = logits.topk(self.k, 1).indices
        self.hit += (top == target[:, None]).any(1).sum().item()
        self.n += target.numel()

    def value(self):
        return self.hit / max(self.n, 1)


def validate(model, loader, device):
    model.eval()
    top1, top5 = Topk(1), Topk(5)
    with torch.inference_mode():
        for clip, target in loader:
            logits = model(clip.to(device, non_blocking=True))
            target = target.to(device, non_blocking=True)
            top1.add(logits, target)
            top5.add(logits, target)
    return top1.value(), top5.value()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("root")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--workers", type=int, default=16)
    args = p.parse_args()
    device = torch.device("cuda")
    train, val = make_loaders(args.root, args.batch, args.workers)
    model = r2plus1d_18(num_classes=400).to(device)
    opt = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    for epoch in range(45):
        model.train()
        for clip, target in train:
            loss = nn.functional.cross_entropy(
                model(clip.to(device, non_blocking=True)), target.to(device, non_blocking=True)
            )
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        print(epoch, loss.item(), validate(model, val, device))


if __name__ == "__main__":
    main()
