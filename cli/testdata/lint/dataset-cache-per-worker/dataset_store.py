"""Dataset store: one mistake, and its right twin beside it."""

import cv2
from torch.utils.data import DataLoader, Dataset


class Faces(Dataset):
    imgs = {}

    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, idx):
        name = self.names[idx]
        if name not in self.imgs:
            self.imgs[name] = cv2.imread(name)  # expect: dataset-cache-per-worker
        return self.imgs[name]


train = DataLoader(Faces(open("list.txt").read().split()), batch_size=64, num_workers=12)
