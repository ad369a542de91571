import torch
from torch.utils.data import DataLoader, Dataset


class Speech(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return torch.load(self.files[i], map_location="cpu")


loader = DataLoader(Speech(["a.pt", "b.pt"]), batch_size=4)
