import os
import random

import numpy as np
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification

TINY = "TINY" in os.environ
SEED = 7
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)

IMG = 32 if TINY else 224
CLASSES = 10 if TINY else 100
MICRO = 2 if TINY else 24
ACCUM = 4
EPOCHS = 1


def mixup(x, y, alpha=0.4):
    lam = np.random.beta(alpha, alpha)
    perm = torch.randperm(x.size(0), device=x.device)
    return lam * x + (1 - lam) * x[perm], y, y[perm], lam


def make_loader():
    n = MICRO * 24
    g = torch.Generator().manual_seed(SEED)
    # uint8 keeps the fake dataset small on the host
    imgs = torch.randint(0, 256, (n, 3, IMG, IMG), dtype=torch.uint8, generator=g)
    labels = torch.randint(0, CLASSES, (n,), generator=g)
    return DataLoader(
        TensorDataset(imgs, labels),
        batch_size=MICRO,
        shuffle=True,
        generator=torch.Generator().manual_seed(SEED),
        drop_last=True,
    )


def build_model():
    cfg = ViTConfig(
        image_size=IMG,
        patch_size=8 if TINY else 16,
        hidden_size=32 if TINY else 768,
        intermediate_size=64 if TINY else 3072,
        num_hidden_layers=2 if TINY else 12,
        num_attention_heads=2 if TINY else 12,
        hidden_dropout_prob=0.1,
        num_labels=CLASSES,
    )
    return ViTForImageClassification(cfg)


def main():
    accelerator = Accelerator(
        gradient_accumulation_steps=ACCUM, mixed_precision="no", cpu=not torch.cuda.is_available()
    )
    model = build_model()
    loader = make_loader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-4, total_steps=EPOCHS * len(loader) // ACCUM + 1
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    step = 0
    seen = torch.zeros((), device=accelerator.device)
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in loader:
            with accelerator.accumulate(model):
                images = images.float().div_(255.0).sub_(0.5).div_(0.25)
                images, ya, yb, lam = mixup(images, labels)
                logits = model(pixel_values=images).logits
                loss = lam * criterion(logits, ya) + (1 - lam) * criterion(logits, yb)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            with torch.no_grad():
                seen += (logits.argmax(-1) == labels).sum()
            accelerator.print(f"step {step} loss {loss.item():.8e}")
            step += 1
    accelerator.print("train hits", int(seen.item()))


if __name__ == "__main__":
    main()
