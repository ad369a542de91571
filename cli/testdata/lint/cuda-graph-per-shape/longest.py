"""Batches padded to their longest sample, and a graph of each length."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def collate(rows):
    ids = pad_sequence([torch.tensor(r["ids"]) for r in rows], batch_first=True)
    return ids, torch.tensor([r["label"] for r in rows])


def train(model, rows):
    model = torch.compile(model.cuda(), mode="reduce-overhead")  # expect: cuda-graph-per-shape
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    for ids, label in DataLoader(rows, batch_size=32, shuffle=True, collate_fn=collate):
        loss = torch.nn.functional.cross_entropy(model(ids.cuda()), label.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
