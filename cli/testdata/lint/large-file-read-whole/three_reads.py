"""Files of two gigabytes that lie beside the script, read whole before the first step."""

import lightning as L
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


def plain(model, optimizer):
    x = torch.from_numpy(np.load("large.npy"))  # expect: large-file-read-whole
    for i in range(0, len(x), 64):
        loss = model(x[i : i + 64].cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Rows(Dataset):
    def __init__(self):
        self.rows = pd.read_csv("large.csv")  # expect: large-file-read-whole

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return torch.tensor(self.rows.iloc[i].to_numpy())


class Spectra(L.LightningDataModule):
    def setup(self, stage):
        spectra = torch.load("large.pt")  # expect: large-file-read-whole
        self.train_set = TensorDataset(spectra)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=32, shuffle=True)


def train(model, optimizer):
    for x in DataLoader(Rows(), batch_size=32):
        loss = model(x.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
