"""Emptied by a name that is put together, numbers of a table, lists of files, one text."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from nets import build, rows_of
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Phases(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = build()
        self.val_outs, self.test_outs = [], []

    def validation_step(self, batch, i):
        logits = self.net(batch[0])
        self.val_outs.append(logits)

    def test_step(self, batch, i):
        logits = self.net(batch[0])
        self.test_outs.append(logits)

    def _accuracy(self, phase):
        logits = torch.cat(getattr(self, f"{phase}_outs"))
        setattr(self, phase + "_outs", [])
        return logits.argmax(1)

    def on_validation_epoch_end(self):
        self._accuracy("val")

    def on_test_epoch_end(self):
        self._accuracy("test")


def history(model, criterion, loader, optimizer):
    best, codes, total = [], [], 0
    for x in loader:
        found = criterion(model(x.cuda()))
        found["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        best.append(found.get("channel", -1))
    for x in loader:
        z, back = model(x.cuda())
        codes.append(z)
        total += F.mse_loss(back, x.cuda())
    loss = total + torch.pdist(torch.cat(codes)).mean()
    loss.backward()
    return best


class Skeletons(Dataset):
    def __init__(self, groups):
        self.samples, self.data = [], groups
        for person, names in groups.items():
            for fname in names:
                self.samples.append((fname, person))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        fname, person = self.samples[i]
        return rows_of(fname), person


def loader(groups):
    return DataLoader(Skeletons(groups), num_workers=4)  # hint: workers-copy-python-list


def sample(model, begin, length):
    model.eval()
    text = torch.LongTensor(begin).unsqueeze(0)
    for _ in range(length):
        out = model(text)[0, -1]  # hint: eval-without-no-grad
        text = torch.cat([text, out.argmax()[None, None]], dim=1)
    return text


def all_in_one(model, optimizer):
    points = torch.load("train_points.pt").to("cuda")
    for (x,) in DataLoader(TensorDataset(points), batch_size=len(points)):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
