"""A file that a helper reads into an array, and that is moved to the card whole."""

import numpy as np
import pandas as pd
import torch


def columns(path, names):
    frame = pd.read_parquet(path)  # hint: dataset-read-whole
    return frame[names].to_numpy("float32")


def rows(path):
    return np.load(path).astype(np.float32)


def train_table(model, optimizer, loss_fn, size):
    table = torch.from_numpy(columns("train.parquet", ["a", "b"]))
    table = table.to("cuda")  # expect: dataset-on-gpu
    for i in range(0, len(table), size):
        loss = loss_fn(model(table[i : i + size]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_rows(model, optimizer, loss_fn, size):
    samples = torch.tensor(rows("train.npy")).cuda()  # expect: dataset-on-gpu
    for i in range(0, len(samples), size):
        loss = loss_fn(model(samples[i : i + size]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_batches(model, optimizer, loss_fn, size):
    table = torch.from_numpy(columns("train.parquet", ["a", "b"]))
    for i in range(0, len(table), size):
        loss = loss_fn(model(table[i : i + size].cuda()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
