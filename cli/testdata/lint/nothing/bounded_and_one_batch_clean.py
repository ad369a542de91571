"""Caches with a bound, results of one batch, models handed to functions: nothing grows."""

import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, paths, most):
        self.paths, self.cache, self.most = paths, {}, most

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        if index not in self.cache and len(self.cache) < self.most:
            self.cache[index] = torch.load(self.paths[index])
        return self.cache.get(index)


loader = DataLoader(Points([], 64), num_workers=4)


@torch.no_grad()
def translate(model, batches, device):
    texts = []
    for batch in batches:
        found = model(batch["x"].to(device))
        pairs = []
        for number, row in zip(batch["id"].tolist(), found):
            pairs.append((number, row))
        texts.extend(str(r) for _, r in sorted(pairs))
    return texts


class Meter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)


def norm(parameters):
    return sum(p.grad.norm().item() for p in parameters)


def one_epoch(model, optimizer, data):
    meter = Meter()
    for x, y in data:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(norm(model.parameters()))


def main(model, optimizer, data):
    model.to("cuda")
    for _ in range(10):
        one_epoch(model, optimizer, data)


def gradients(fn, inputs):
    for out in fn(inputs):
        out.sum().backward(retain_graph=True)


def once(model, x, optimizer):
    seen = []
    handle = model.register_forward_hook(lambda m, i, o: seen.append(o))
    model(x).sum().backward()
    optimizer.step()
    handle.remove()
    assert len(list(loader)) == 2
    return seen
