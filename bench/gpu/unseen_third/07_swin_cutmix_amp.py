"""Swin transformer on images, fp16 AMP, CutMix, layer-wise lr decay."""

import math
import os
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from transformers import SwinConfig, SwinForImageClassification

SMALL = os.environ.get("SMALL") == "1"


def seed_all(s):
    random.seed(s)
    np.random.seed(s)
    torch.manual_seed(s)


class Images(Dataset):
    def __init__(self, n, size, classes):
        self.n, self.size, self.classes = n, size, classes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = np.random.default_rng(i)
        img = g.integers(0, 256, (3, self.size // 4, self.size // 4), dtype=np.uint8)
        img = img.repeat(4, axis=1).repeat(4, axis=2)
        return torch.from_numpy(img), int(g.integers(self.classes))


def cutmix(x, y, classes):
    onehot = torch.nn.functional.one_hot(y, classes).float()
    lam = np.random.beta(1.0, 1.0)
    h = x.size(-1)
    cut = int(h * math.sqrt(1 - lam))
    r, c = np.random.randint(0, h - cut + 1, 2)
    perm = torch.randperm(len(x), device=x.device)
    x[:, :, r : r + cut, c : c + cut] = x[perm, :, r : r + cut, c : c + cut]
    keep = 1 - cut * cut / (h * h)
    return x, keep * onehot + (1 - keep) * onehot[perm]


def groups(model, lr, decay):
    out = {}
    for name, p in model.named_parameters():
        layer = 0
        if "encoder.layers." in name:
            layer = 1 + int(name.split("encoder.layers.")[1].split(".")[0])
        elif "classifier" in name or "layernorm" in name and "encoder" not in name:
            layer = 5
        wd = 0.0 if p.ndim == 1 or "relative_position_bias_table" in name else 0.05
        out.setdefault((layer, wd), []).append(p)
    return [
        {"params": ps, "lr": lr * decay ** (5 - layer), "weight_decay": wd}
        for (layer, wd), ps in out.items()
    ]


def main():
    seed_all(17)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, bs, classes = (32, 2, 10) if SMALL else (224, 40, 200)
    config = SwinConfig(
        image_size=size,
        patch_size=2 if SMALL else 4,
        embed_dim=12 if SMALL else 96,
        depths=[1, 1] if SMALL else [2, 2, 6, 2],
        num_heads=[2, 4] if SMALL else [3, 6, 12, 24],
        window_size=4 if SMALL else 7,
        drop_path_rate=0.1,
        num_labels=classes,
    )
    model = SwinForImageClassification(config).to(device)
    optimizer = torch.optim.AdamW(groups(model, 1e-3, 0.8))
    scaler = torch.amp.GradScaler(enabled=device.type == "cuda")
    loader = DataLoader(Images(bs * 15, size, classes), bs, shuffle=True, num_workers=0)
    criterion = nn.CrossEntropyLoss()
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)
    model.train()
    for step, (images, target) in enumerate(loader):
        images, target = images.to(device), target.to(device)
        images = (images.float() / 255 - mean) / std
        images, soft = cutmix(images, target, classes)
        optimizer.zero_grad()
        with torch.amp.autocast(device.type, enabled=device.type == "cuda"):
            logits = model(images).logits
            loss = criterion(logits, soft)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss: {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
