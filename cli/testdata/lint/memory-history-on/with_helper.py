"""A helper switches it on, accelerate trains."""

import torch
from accelerate import Accelerator


def watch_memory(folder):
    torch.cuda.memory._record_memory_history()  # expect: memory-history-on
    return lambda: torch.cuda.memory._dump_snapshot(f"{folder}/snapshot.pickle")


def main(model, optimizer, loader, folder):
    dump = watch_memory(folder)
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    dump()
