"""Class scores, token ids and counts are small; masks, pictures and losses with a graph are not."""

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torch.cuda.amp import autocast
from datasets import load_dataset

device = torch.device("cuda")


def chances(model, loader):
    model.eval()
    kept = []
    with torch.no_grad():
        for batch in loader:
            logits = model(batch["input_ids"].to(device), batch["attention_mask"].to(device))
            kept.append(logits.softmax(-1))  # hint: outputs-kept-on-card
    return kept


def pictures(model, loader):
    model.eval()
    kept = []
    with torch.no_grad():
        for batch in loader:
            kept.append(model(batch.to(device)))  # expect: outputs-kept-on-card
    return kept


def prepared(tokenizer, texts, images, scores):
    input_ids = torch.stack([tokenizer(t) for t in texts])
    text = TensorDataset(input_ids.to(device), scores.to(device))  # expect: dataset-on-gpu
    labels = torch.tensor(scores)
    small = TensorDataset(input_ids.to(device), labels.to(device))  # hint: dataset-on-gpu
    seen = TensorDataset(images.to(device), labels.to(device))  # expect: dataset-on-gpu
    return text, small, seen


class Popularity(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(items), requires_grad=False)

    def training_step(self, batch, index):
        self.counts += torch.bincount(batch["items"], minlength=len(self.counts))
        return torch.tensor(0.0)


def under_one_autocast(model, loader, optimizer, scaler):
    with autocast():  # expect: autocast-around-loop
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


table = load_dataset("json", data_files="a.jsonl", keep_in_memory=True)  # expect: datasets-buffers
table = table.map(len, keep_in_memory=True)  # hint: datasets-buffers
table = table.filter(bool, keep_in_memory=True)  # hint: datasets-buffers
