"""Without workers the data set runs in the process that trains."""

import torch
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return torch.load(self.files[i], map_location="cpu").cuda()


def batches(files):
    return DataLoader(Patches(files), batch_size=8, shuffle=True, num_workers=0)
