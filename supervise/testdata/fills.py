"""Ways of filling host memory before the first step. The lines that do are marked."""

import io
import json
import os
import pickle
import signal
import sys
import tempfile
import threading
import time

import numpy as np

MB = 1 << 20


def table():
    import pandas as pd

    path = os.path.join(tempfile.mkdtemp(), "rows.csv")
    row = ",".join("%.6f" % x for x in np.random.rand(40)) + "\n"
    with open(path, "w") as file:
        file.write(",".join("c%d" % i for i in range(40)) + "\n")
        for _ in range(400):
            file.write(row * 1000)
    frame = pd.concat([pd.read_csv(path) for _ in range(20)])  # fills
    return frame


def arrays():
    path = os.path.join(tempfile.mkdtemp(), "whole.npy")
    np.save(path, np.ones((8, MB // 8)))
    return [np.load(path) for _ in range(400)]  # fills


def rests():
    kept = []
    while True:
        kept.append(np.ones(30 * MB))  # fills
        time.sleep(0.5)


def one_array():
    path = os.path.join(tempfile.mkdtemp(), "one.npy")
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(1500, MB // 4))
    return np.load(path)  # fills


def blob():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    path = os.path.join(tempfile.mkdtemp(), "blob")
    with open(path, "wb") as file:
        file.truncate(1600 * MB)
    return open(path, "rb").read()  # fills


def copies():
    whole = np.random.rand(30, MB)
    scaled = [(whole - i) / 2.0 for i in range(20)]  # fills
    return scaled


def images():
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.zeros((1024, 1024, 3), np.uint8)).save(buffer, "jpeg")

    def decode(data):
        image = Image.open(io.BytesIO(data))
        return np.asarray(image).astype(np.float32)

    return {i: decode(buffer.getvalue()) for i in range(1000)}  # fills


def corpus():
    words = "the quick brown fox jumps over the lazy dog " * 200
    tokens = []
    for _ in range(40000):
        tokens.append([hash(w) for w in words.split()])  # fills
    return tokens


def parsed():
    text = json.dumps([{"id": i, "values": list(range(20))} for i in range(20000)])
    return [json.loads(text) for _ in range(200)]  # fills


def pickled():
    blob = pickle.dumps([str(i) * 50 for i in range(100000)])
    kept = []
    while True:
        kept.append(pickle.loads(blob))  # fills


def cache():
    kept = {}

    def sample(i):
        if i not in kept:
            kept[i] = np.random.rand(64, 1024)  # fills
        return kept[i]

    for i in range(100000):
        sample(i)


def attribute():
    class Data:
        def __init__(self):
            self.rows = []
            for i in range(4000):
                self.rows.append(np.full(MB // 8, i, dtype=np.float64))  # fills

    return Data()


def late():
    """Hears the signal only when nobody waits for its answer any more."""
    number = {signal.SIGRTMAX - 3}

    def grow():
        signal.pthread_sigmask(signal.SIG_BLOCK, number)
        rows = np.full(8 * MB, 1.0)
        time.sleep(0.2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, number)
        return rows

    kept = []
    while True:
        kept.append(grow())  # fills


def generator():
    def rows():
        for i in range(4000):
            yield np.full(MB // 8, i, dtype=np.float64)

    return list(rows())  # fills


def tensors():
    import torch

    return torch.cat([torch.ones(MB) * i for i in range(1000)])  # fills


def worker():
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __init__(self):
            self.kept = {}

        def __len__(self):
            return 100000

        def __getitem__(self, i):
            self.kept[i] = np.random.rand(64, 1024)  # fills
            return 0

    for _ in DataLoader(Samples(), batch_size=8, num_workers=1):
        pass


def replaced():
    """Becomes another program: the signal would end it."""
    kept = np.ones(40 * MB)
    time.sleep(0.4)
    os.execv(sys.executable, [sys.executable, "-I", "-c", GROWS])
    return kept


def closed():
    """Closes every file it does not know, and opens its own."""
    os.closerange(3, 64)
    files = [open(os.path.join(sys.argv[2], str(i)), "w+") for i in range(32)]
    time.sleep(0.6)
    grown = []
    for _ in range(40):
        grown.append(np.ones(2 * MB))
        time.sleep(0.03)
    print("LEFT", sum(os.fstat(f.fileno()).st_size for f in files))


GROWS = """
import time
kept = []
for _ in range(40):
    kept.append(bytearray(16 << 20))
    time.sleep(0.03)
print("LEFT 0")
"""

if __name__ == "__main__":
    globals()[sys.argv[1]]()
