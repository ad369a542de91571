"""Dataset store, done right."""

import cv2
from torch.utils.data import DataLoader, Dataset


class Faces(Dataset):
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, idx):
        return cv2.imread(self.names[idx])


train = DataLoader(Faces(open("list.txt").read().split()), batch_size=64, num_workers=12)
