"""The logits of every word of an evaluation, joined on the card."""

import math

import torch
from torch.nn import CrossEntropyLoss
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2-medium").cuda()


@torch.no_grad()
def perplexity(model, eval_loader):
    model.eval()
    preds, gold = [], []
    for batch in eval_loader:
        batch = {k: v.cuda() for k, v in batch.items()}
        outputs = model(**batch)
        preds.append(outputs.logits)  # expect: outputs-kept-on-card
        gold.append(batch["labels"])
    preds = torch.cat(preds, dim=0)
    gold = torch.cat(gold, dim=0)
    loss = CrossEntropyLoss()(preds.view(-1, preds.size(-1)), gold.view(-1))
    return math.exp(loss)


@torch.no_grad()
def perplexity_clean(model, eval_loader):
    model.eval()
    preds, gold = [], []
    for batch in eval_loader:
        batch = {k: v.cuda() for k, v in batch.items()}
        outputs = model(**batch)
        preds.append(outputs.logits.argmax(-1))
        gold.append(batch["labels"])
    preds = torch.cat(preds, dim=0)
    gold = torch.cat(gold, dim=0)
    loss = CrossEntropyLoss()(preds.float(), gold.float())
    return math.exp(loss)
