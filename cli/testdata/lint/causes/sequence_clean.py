import numpy as np
from tensorflow.keras.utils import Sequence


class Gen(Sequence):
    def __init__(self, files, bs):
        self.files, self.bs = files, bs

    def __len__(self):
        return len(self.files) // self.bs

    def __getitem__(self, i):
        return np.stack([np.load(f) for f in self.files[i * self.bs : (i + 1) * self.bs]])
