"""Only the word that was chosen is kept."""

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
        preds.append(outputs.logits.argmax(-1))
        gold.append(batch["labels"])
    preds = torch.cat(preds, dim=0)
    gold = torch.cat(gold, dim=0)
    loss = CrossEntropyLoss()(preds.float(), gold.float())
    return math.exp(loss)
