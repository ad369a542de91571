"""Workers that give tensors of the host, and a training loop that moves them."""

import torch
from torch.utils.data import DataLoader, Dataset


class Slices(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.load(self.paths[i], map_location="cpu")


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([r["ids"] for r in rows], batch_first=True)
    return ids, torch.tensor([r["label"] for r in rows])


def train(model, optimizer, paths):
    loader = DataLoader(Slices(paths), batch_size=2, num_workers=8, pin_memory=True)
    for volume in loader:
        loss = model(volume.cuda(non_blocking=True)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_text(model, optimizer, rows):
    for ids, label in DataLoader(rows, 32, num_workers=2, collate_fn=collate):
        loss = torch.nn.functional.cross_entropy(model(ids.to("cuda")), label.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
