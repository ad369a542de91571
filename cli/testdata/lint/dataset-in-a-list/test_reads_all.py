"""A unit test: small data, a process that ends soon."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def test_every_batch_comes_once():
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=2)
    batches = list(loader)  # hint: dataset-in-a-list
    assert len(batches) == 5
