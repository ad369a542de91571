"""Data sets and a collate function that use the card in their workers."""

import torch
from torch.utils.data import DataLoader, Dataset


class Slices(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        volume = torch.load(self.paths[i], map_location="cpu")
        return volume.cuda()  # expect: card-in-workers


class Spectra(torch.utils.data.Dataset):
    def __init__(self, waves, window):
        self.waves, self.window = waves, window

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        wave = self.waves.read(i)
        wave = torch.from_numpy(wave).to("cuda:0")  # expect: card-in-workers
        return torch.stft(wave, 512, window=self.window, return_complex=True).abs()


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([r["ids"] for r in rows], batch_first=True)
    return ids.to("cuda"), torch.tensor([r["label"] for r in rows])  # expect: card-in-workers


def loaders(paths, waves, window, rows):
    slices = DataLoader(Slices(paths), batch_size=2, num_workers=8)
    spectra = DataLoader(Spectra(waves, window), batch_size=16, num_workers=4)
    return slices, spectra, DataLoader(rows, 32, num_workers=2, collate_fn=collate)
