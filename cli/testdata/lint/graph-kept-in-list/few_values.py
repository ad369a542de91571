"""The values behind unique() are as many as there are classes or codes, and have no graph."""

import numpy as np
import torch


def codes_used(loader, model, optimizer, device):
    used, history = [], {"codes": []}
    for x in loader:
        codes, loss = model(x.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        used.append(codes.unique())
        history["codes"].append(torch.unique(codes))
        values, counts = codes.unique(return_counts=True)
        used.append(values)
        used.append(counts)
    return used, history


def labels_seen(loader, model, device):
    seen = []
    model.eval()
    with torch.no_grad():
        for x in loader:
            masks = model(x.to(device)).argmax(1)
            seen.append(masks.unique())
            seen.append(torch.bincount(masks.flatten()))
    return torch.cat(seen)


def classes_on_card(loader, model, optimizer, device):
    table = np.load("rows.npz")
    rows = torch.from_numpy(table["rows"])
    kinds = rows.unique().to(device)
    also = torch.unique(torch.from_numpy(table["more"])).cuda()
    for x in loader:
        loss = model(x.to(device), kinds, also).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def embeddings(loader, model, optimizer, device):
    kept = []
    for x in loader:
        z = model(x.to(device))
        loss = z.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(z.mean(0))  # expect: graph-kept-in-list
    return kept
