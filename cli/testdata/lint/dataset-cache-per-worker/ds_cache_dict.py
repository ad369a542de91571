"""Ds cache dict: one mistake, and its right twin beside it."""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Vol(Dataset):
    def __init__(self, paths):
        self.paths, self.kept = paths, {}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, k):
        if k not in self.kept:
            self.kept[k] = np.load(self.paths[k])  # expect: dataset-cache-per-worker
        return self.kept[k]


dl = DataLoader(Vol(["v.npy"] * 5000), num_workers=6, batch_size=2)
