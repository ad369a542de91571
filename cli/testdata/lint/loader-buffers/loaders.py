"""Caches and buffers of data loaders."""
import functools
import os

import numpy as np
import torch
import webdataset as wds
from datasets import load_dataset
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Cached(Dataset):
    def __init__(self, files):
        self.files, self.cache = files, {}

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = np.load(self.files[index])  # expect: dataset-cache-per-worker
        return self.cache[index]


class Remembered(Dataset):
    def __init__(self, files):
        self.files = files

    @functools.lru_cache(maxsize=None)  # expect: dataset-cache-per-worker
    def read(self, index):
        return np.load(self.files[index])

    def __getitem__(self, index):
        return self.read(index)


class Lines(IterableDataset):
    def __iter__(self):
        yield from open("lines.txt")


class Bounded(Dataset):
    def __init__(self, files):
        self.files, self.cache = files, {}

    @functools.lru_cache(maxsize=64)
    def read(self, index):
        return np.load(self.files[index])

    def __getitem__(self, index):
        if len(self.cache) > 100:
            self.cache.popitem()
        self.cache[index] = self.read(index)
        return self.cache[index]


few = DataLoader(Cached([]), batch_size=32, num_workers=4, pin_memory=True)
wide = DataLoader(Bounded([]), batch_size=2048, num_workers=os.cpu_count())  # expect: loader-buffers
deep = DataLoader(Bounded([]), batch_size=1024, num_workers=8, prefetch_factor=16)  # expect: loader-buffers
kept = DataLoader(Lines(), num_workers=4, persistent_workers=True)  # expect: loader-buffers
shards = wds.WebLoader(wds.WebDataset("x.tar"), num_workers=4, persistent_workers=True)  # expect: loader-buffers
plain = DataLoader(Bounded([]), batch_size=64, num_workers=4, persistent_workers=True)
alone = DataLoader(Bounded([]), batch_size=4096)

rows = load_dataset("json", data_files="x.jsonl", num_proc=16)  # hint: datasets-buffers
table = load_dataset("parquet", data_files="x.parquet", num_proc=16)
memory = load_dataset("csv", data_files="x.csv", keep_in_memory=True)  # expect: datasets-buffers
whole = table.map(len, batched=True, batch_size=None)  # expect: datasets-buffers
wide_map = table.map(len, writer_batch_size=20000)  # expect: datasets-buffers
usual = table.map(len, batched=True, num_proc=4)
