"""What is kept is a number a sample, a number a step, or a description of the data."""

import json
import time

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset


class Described(Dataset):
    def __init__(self, folder):
        with open(folder + "/meta.json") as f:
            self.metadata = json.load(f)

    def __getitem__(self, i):
        return self.metadata[str(i)]["size"]


class Told(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.samples = json.load(f)  # expect: list-copied-here

    def __getitem__(self, i):
        return self.samples[i]["text"]


described = DataLoader(Described("data"), num_workers=8)  # hint: workers-copy-python-list
told = DataLoader(Told("all.json"), num_workers=8)  # expect: workers-copy-python-list


def gather(test_set):
    test_loader = DataLoader(test_set, batch_size=64)
    device = torch.device("cuda")
    targets, pixels = [], []
    for images, target in test_loader:
        images = images.to(device)
        target = target.to(device)
        targets.append(target)
        pixels.append(images)  # expect: dataset-on-gpu
    return torch.cat(targets), torch.cat(pixels)


class Timed(pl.LightningModule):
    def training_step(self, batch, number):
        began = time.perf_counter()
        loss = self.net(batch).mean()
        took = float(time.perf_counter() - began)
        return {"loss": loss, "took": took}

    def training_epoch_end(self, outputs):
        self.log("took", sum(o["took"] for o in outputs))


class Kept(pl.LightningModule):
    def training_step(self, batch, number):
        out = self.net(batch)
        return {"loss": out.mean(), "out": out}  # expect: lightning-keeps-step-outputs

    def training_epoch_end(self, outputs):
        self.log("largest", max(o["out"].max() for o in outputs))
