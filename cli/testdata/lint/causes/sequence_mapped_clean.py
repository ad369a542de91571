import numpy as np
from tensorflow.keras.utils import Sequence


class Gen(Sequence):
    def __init__(self, path, bs):
        self.x = np.load(path, mmap_mode="r")
        self.bs = bs

    def __len__(self):
        return len(self.x) // self.bs

    def __getitem__(self, i):
        return self.x[i * self.bs : (i + 1) * self.bs]
