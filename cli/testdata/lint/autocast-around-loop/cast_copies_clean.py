"""Copies that each forward pass would make again, and copies that end with it."""

import torch
from torch.cuda.amp import autocast

from taggers import crf

device = "cuda"


def spans_of(model, loader):
    found = []
    with torch.no_grad():
        for i, batch in enumerate(loader):
            with autocast():
                emissions = model(batch["ids"].to(device), batch["mask"].to(device))
            found.append((i, crf.viterbi_decode(emissions, batch["mask"].to(device))))
    return found


def without_cache(model, loader):
    found = []
    with torch.no_grad(), autocast(cache_enabled=False):
        for batch in loader:
            emissions = model(batch["ids"].to(device))
            found.append(crf.viterbi_decode(emissions))
    return found


def written(model, loader, tokenizer):
    texts = []
    with torch.no_grad(), autocast():  # hint: autocast-around-loop
        for batch in loader:
            out = model(batch["ids"].to(device))
            ids = out.argmax(-1)
            texts += tokenizer.batch_decode(ids)
    return texts


def on_the_host(model, loader, beam_search):
    found = []
    with torch.no_grad(), autocast():  # hint: autocast-around-loop
        for x, _ in loader:
            out = model(x.to(device))
            found.append(beam_search(out.cpu(), width=4))
    return found


def averaged(models, val_loader):
    chances = []
    with torch.no_grad():
        for x, _ in val_loader:
            x, total = x.to(device), 0
            for model in models:
                with autocast():
                    total = total + model(x).softmax(-1)
            chances.append(total.cpu())
    return chances
