"""A cache and a table in a file that makes no loader: how many samples there are, and who reads
them, is decided elsewhere.
"""

import librosa
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __init__(self, files):
        self.files, self.ready = files, [None] * len(files)

    def __getitem__(self, i):
        if self.ready[i] is None:
            self.ready[i] = np.array(Image.open(self.files[i]))  # hint: dataset-cache-grows
        return torch.from_numpy(self.ready[i])


class Voices(Dataset):
    def __init__(self, files):
        self.waves = []
        for path in files:
            wave, _ = librosa.load(path, sr=16000)
            self.waves.append(wave)  # hint: dataset-read-whole

    def __getitem__(self, i):
        return self.waves[i]
