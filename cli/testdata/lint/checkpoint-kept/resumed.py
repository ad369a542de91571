"""A file that is loaded to the card is no dataset where a network takes its weights from it."""

import torch

device = torch.device("cuda")


def resume(model, optimizer, path, epochs, loader, loss_fn):
    first = 0
    if path:
        found = torch.load(path, map_location=device)  # expect: checkpoint-kept
        model.load_state_dict(found["state_dict"])
        optimizer.load_state_dict(found["optimizer"])
        first = found["epoch"]
    for _ in range(first, epochs):
        for x, y in loader:
            loss = loss_fn(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def pieces(model, optimizer, path, epochs, size, loss_fn):
    samples = torch.load(path, map_location=device)  # expect: dataset-on-gpu
    for _ in range(epochs):
        for i in range(0, 10**6, size):
            loss = loss_fn(model(samples[i : i + size]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
