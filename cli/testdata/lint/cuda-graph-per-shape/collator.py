"""The collator of Hugging Face pads to the longest, and accelerate trains."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding


def main(rows):
    accelerator = Accelerator(mixed_precision="bf16")
    tokenizer = AutoTokenizer.from_pretrained("roberta-base")
    model = AutoModelForSequenceClassification.from_pretrained("roberta-base")
    model = torch.compile(model, mode="reduce-overhead")  # expect: cuda-graph-per-shape
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    loader = DataLoader(rows, 16, shuffle=True, collate_fn=DataCollatorWithPadding(tokenizer))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
