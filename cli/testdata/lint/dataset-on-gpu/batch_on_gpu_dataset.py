import torch
from torch.utils.data import DataLoader, Dataset


class Speech(Dataset):
    def __init__(self, files):
        self.clips = [torch.load(f).cuda() for f in files]  # expect: dataset-on-gpu

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        return self.clips[i]


loader = DataLoader(Speech(["a.pt", "b.pt"]), batch_size=4)
