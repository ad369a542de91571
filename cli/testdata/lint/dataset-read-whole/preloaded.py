"""Images that are always read at once, and images that the user asks to have read."""

import cv2
from torch.utils.data import DataLoader, Dataset


class Always(Dataset):
    def __init__(self, files):
        self.images = []
        for f in files:
            self.images.append(cv2.imread(f))  # expect: dataset-read-whole

    def __getitem__(self, i):
        return self.images[i]


class OnRequest(Dataset):
    def __init__(self, files, preload=False):
        self.files = files
        if preload:
            self.images = [cv2.imread(f) for f in files]  # hint: dataset-read-whole

    def __getitem__(self, i):
        return cv2.imread(self.files[i])


loader = DataLoader(Always(["a.png"]), batch_size=8)
