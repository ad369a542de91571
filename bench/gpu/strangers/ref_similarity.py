"""Embeddings in the manner of torchvision's similarity reference: a sampler of P classes with K
images, batch-all triplets mined from the embeddings.
"""

# tiny: -p 3 -k 2 --side 32 --depth 2 2 --width 16
import argparse
import random

import torch
import torch.nn as nn
import torchvision
from torch.utils.data import DataLoader, Dataset, Sampler


class Products(Dataset):
    def __init__(self, classes, each, side):
        self.classes, self.each, self.side = classes, each, side
        self.targets = [c for c in range(classes) for _ in range(each)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        g, h = (
            torch.Generator().manual_seed(self.targets[i]),
            torch.Generator().manual_seed(1000 + i),
        )
        return torch.randn(3, self.side, self.side, generator=g) + torch.randn(
            3, self.side, self.side, generator=h
        ), self.targets[i]


class PKSampler(Sampler):
    def __init__(self, targets, p, k, batches):
        self.groups, self.p, self.k, self.batches = {}, p, k, batches
        for i, t in enumerate(targets):
            self.groups.setdefault(t, []).append(i)

    def __iter__(self):
        rng = random.Random(0)
        for _ in range(self.batches):
            for label in rng.sample(sorted(self.groups), self.p):
                yield from rng.sample(self.groups[label], self.k)

    def __len__(self):
        return self.batches * self.p * self.k


class TripletMarginLoss(nn.Module):
    def __init__(self, margin=0.2):
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, labels):
        dist = torch.cdist(embeddings, embeddings)
        same = labels[None] == labels[:, None]
        not_me = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        triplets = dist.unsqueeze(2) - dist.unsqueeze(1) + self.margin
        mask = (same & not_me).unsqueeze(2) & ~same.unsqueeze(1)
        triplets = torch.where(mask, triplets, torch.zeros_like(triplets)).clamp(min=0)
        positive = (triplets > 1e-16).sum()
        return triplets.sum() / (positive + 1e-16), positive


class EmbeddingNet(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        block = [
            torchvision.models.convnext.CNBlockConfig(
                width * 2**i, width * 2 ** (i + 1) if i < len(depth) - 1 else None, n
            )
            for i, n in enumerate(depth)
        ]
        self.model = torchvision.models.ConvNeXt(block, stochastic_depth_prob=0.0, num_classes=128)

    def forward(self, x):
        return nn.functional.normalize(self.model(x))


def train_epoch(model, optimizer, criterion, data_loader, device, epoch, print_freq):
    model.train()
    running_loss = 0.0
    for i, (samples, targets) in enumerate(data_loader):
        optimizer.zero_grad()
        samples, targets = samples.to(device), targets.to(device)
        embeddings = model(samples)
        loss, active = criterion(embeddings, targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        print(f"step {epoch * 10 + i} loss {loss.item():.6f} active {int(active)}", flush=True)
        if i % print_freq == print_freq - 1:
            print(f"[{epoch}, {i}] | average {running_loss / print_freq:.4f}")
            running_loss = 0.0


def main(args):
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Products(40, 8, args.side)
    loader = DataLoader(
        data,
        batch_size=args.labels_per_batch * args.samples_per_label,
        sampler=PKSampler(data.targets, args.labels_per_batch, args.samples_per_label, 10),
    )
    model = EmbeddingNet(args.depth, args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(2):
        train_epoch(model, optimizer, TripletMarginLoss(args.margin), loader, device, epoch, 5)
        torch.save({"model": model.state_dict()}, "similarity.pth")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--labels-per-batch", type=int, default=16)
    parser.add_argument("-k", "--samples-per-label", type=int, default=6)
    parser.add_argument("--side", type=int, default=160)
    parser.add_argument("--depth", type=int, nargs="+", default=[3, 3, 9, 3])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--margin", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=5e-6)
    main(parser.parse_args())
