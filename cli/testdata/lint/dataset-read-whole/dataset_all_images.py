import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, paths):
        self.paths = paths
        self.images = [np.asarray(Image.open(p)) for p in paths]  # expect: dataset-read-whole

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i])


loader = DataLoader(Images([]), batch_size=8, num_workers=8)
