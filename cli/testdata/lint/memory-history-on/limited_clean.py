"""A record with an end: a hundred thousand entries."""

import torch


def main(model, optimizer, loader):
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    for batch in loader:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.memory._dump_snapshot("end.pickle")
