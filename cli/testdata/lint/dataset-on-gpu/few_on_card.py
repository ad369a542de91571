"""A list on the card that stops growing at a limit is no data set on the card."""

import torch
from torch.utils.data import DataLoader


def shown(model, dataset, limit):
    loader = DataLoader(dataset, batch_size=4)
    kept = []
    for clouds in loader:
        if len(kept) >= limit:
            break
        clouds = clouds.cuda()
        kept.append(clouds)  # hint: dataset-on-gpu
    print(model(torch.cat(kept)).argmax().item())


def first_of(dataset, limit):
    loader = DataLoader(dataset, batch_size=4)
    kept = []
    for images, _ in loader:
        kept.append(images.cuda())  # hint: dataset-on-gpu
        if len(kept) == limit:
            return kept
    return kept


def everything(model, dataset):
    loader = DataLoader(dataset, batch_size=4)
    kept = []
    for clouds in loader:
        if len(clouds) >= 4:
            clouds = clouds[:4]
        kept.append(clouds.cuda())  # expect: dataset-on-gpu
    print(model(torch.cat(kept)).argmax().item())


def told_on_the_way(dataset, shown_every):
    loader = DataLoader(dataset, batch_size=4)
    kept = []
    for clouds in loader:
        if len(kept) >= shown_every:
            print(len(kept), "batches")
        kept.append(clouds.cuda())  # expect: dataset-on-gpu
    return kept
