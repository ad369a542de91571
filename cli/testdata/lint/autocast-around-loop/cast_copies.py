"""Copies of the weights that autocast holds while something else needs the room."""

import torch
from torch.cuda.amp import autocast

from taggers import crf, non_max_suppression

device = "cuda"


def spans_of(model, loader):
    found = []
    with torch.no_grad():
        with autocast():  # expect: autocast-around-loop
            for i, batch in enumerate(loader):
                emissions = model(batch["ids"].to(device), batch["mask"].to(device))
                found.append((i, crf.viterbi_decode(emissions, batch["mask"].to(device))))
    return found


@torch.no_grad()
def boxes_of(detector_model, test_loader):
    boxes = []
    with torch.autocast("cuda"):  # expect: autocast-around-loop
        for images, _ in test_loader:
            raw, _ = detector_model(images.to(device))
            for kept in non_max_suppression(raw, 0.5):
                boxes.append(kept.cpu())
    return boxes


def averaged(models, val_loader):
    chances = []
    with torch.no_grad(), autocast():  # expect: autocast-around-loop
        for x, _ in val_loader:
            x, total = x.to(device), 0
            for model in models:
                total = total + model(x).softmax(-1)
            chances.append(total.cpu())
    return chances
