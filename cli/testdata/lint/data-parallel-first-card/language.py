"""Logits of a vocabulary come together on one card."""

import torch
from transformers import AutoModelForCausalLM


def train(loader, vocab):
    model = AutoModelForCausalLM.from_pretrained("gpt2-medium")
    model = torch.nn.DataParallel(model).cuda()  # expect: data-parallel-first-card
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5)
    for ids in loader:
        ids = ids.cuda()
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
