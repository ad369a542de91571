import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

_kept = {}


def decoded(path):
    img = _kept.get(path)
    if img is None:
        img = np.asarray(Image.open(path).convert("RGB"))
        _kept[path] = img  # expect: dataset-cache-per-worker
    return img


class Photos(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = np.asarray(paths), torch.as_tensor(labels)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.from_numpy(decoded(self.paths[i])).permute(2, 0, 1), self.labels[i]


def loaders(paths, labels):
    return DataLoader(Photos(paths, labels), batch_size=64, num_workers=8, shuffle=True)


def decoded_clean(path):
    img = _kept.get(path)
    if img is None:
        img = np.asarray(Image.open(path).convert("RGB"))
    return img


class PhotosClean(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = np.asarray(paths), torch.as_tensor(labels)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.from_numpy(decoded_clean(self.paths[i])).permute(2, 0, 1), self.labels[i]


def loaders_clean(paths, labels):
    return DataLoader(PhotosClean(paths, labels), batch_size=64, num_workers=8, shuffle=True)
