"""What a handler calls to tell of the failure is no retry, though the try block calls it too."""

import time
from datetime import datetime, timezone

import torch
from project import metrics_of, train_step


def now():
    return datetime.now(timezone.utc).isoformat()


def seconds():
    return round(time.perf_counter(), 3)


def train(model, loader, optimizer, summary):
    try:
        for batch in loader:
            loss = train_step(model, batch, optimizer)
            summary.append((now(), seconds(), loss, get_usage(model)))
    except torch.cuda.OutOfMemoryError:
        summary.append({"status": "oom", "at": now(), "after": seconds(), "used": get_usage(model)})
        return None
    return summary


def get_usage(model):
    return torch.cuda.memory_allocated(), sum(p.numel() for p in model.parameters())


def once_more(model, batch, optimizer):
    try:
        loss = train_step(model, batch, optimizer)
    except torch.cuda.OutOfMemoryError:  # expect: retry-in-handler
        torch.cuda.empty_cache()
        loss = train_step(model, batch[: len(batch) // 2], optimizer)
    return metrics_of(loss)
