"""accelerate with its accumulate context: BERT with a token head of one's own on top, masks from a
collate function, gathered metrics."""

# tiny: --d 16 --layers 2 --batch 4 --length 12
import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel

p = argparse.ArgumentParser()
p.add_argument("--d", type=int, default=512)
p.add_argument("--layers", type=int, default=8)
p.add_argument("--batch", type=int, default=32)
p.add_argument("--length", type=int, default=320)
a = p.parse_args()
torch.manual_seed(14)
accelerator = Accelerator(gradient_accumulation_steps=2)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(
            BertConfig(
                vocab_size=8000,
                hidden_size=a.d,
                num_hidden_layers=a.layers,
                num_attention_heads=8,
                intermediate_size=4 * a.d,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            ),
            add_pooling_layer=False,
        )
        self.head = nn.Linear(a.d, 9)

    def forward(self, ids, mask, tags):
        logits = self.head(self.bert(ids, attention_mask=mask).last_hidden_state)
        loss = nn.functional.cross_entropy(logits[mask.bool()], tags[mask.bool()])
        return {"loss": loss, "logits": logits}


def collate(rows):
    n = max(len(r) for r in rows)
    ids = torch.zeros(len(rows), n, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, : len(r)] = r
    return {"ids": ids, "mask": (ids > 0).long(), "tags": ids % 9}


g = torch.Generator().manual_seed(2)
lengths = torch.randint(a.length // 2, a.length + 1, (14 * a.batch,), generator=g).tolist()
rows = [torch.randint(1, 8000, (n,), generator=g) for n in lengths]
model = Tagger()
opt = torch.optim.AdamW(model.parameters(), 1e-4)
model, opt, loader = accelerator.prepare(model, opt, DataLoader(rows, a.batch, collate_fn=collate))
for step, batch in enumerate(loader):
    with accelerator.accumulate(model):
        out = model(**batch)
        accelerator.backward(out["loss"])
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
    right = accelerator.gather(out["logits"].argmax(-1)[:, 0] == batch["tags"][:, 0]).float().mean()
    print("step %d loss %.9g right %.3f" % (step, out["loss"].item(), right.item()), flush=True)
