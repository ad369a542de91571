# Fine-tune (well, train from scratch) a BERT classifier, fp16 AMP + GradScaler
import os
import random

import torch
from torch.amp import GradScaler, autocast
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

small = os.environ.get("SMALL") == "1"
CFG = dict(
    batch_size=4 if small else 48,
    max_len=24 if small else 256,
    min_len=8 if small else 160,
    vocab=300 if small else 20000,
    hidden=32 if small else 768,
    layers=2 if small else 12,
    heads=2 if small else 12,
    num_labels=4,
    lr=1e-4,
    steps=16,
    seed=2024,
)

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
use_cuda = device.type == "cuda"
amp_dtype = torch.float16 if use_cuda else torch.bfloat16


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def make_examples(n):
    rng = random.Random(CFG["seed"])
    out = []
    for _ in range(n):
        label = rng.randrange(CFG["num_labels"])
        length = rng.randint(CFG["min_len"], CFG["max_len"])
        # each class prefers a slice of the vocabulary
        span = (CFG["vocab"] - 10) // CFG["num_labels"]
        toks = []
        for _ in range(length - 1):
            if rng.random() < 0.3:
                toks.append(10 + label * span + rng.randrange(span))
            else:
                toks.append(rng.randrange(10, CFG["vocab"]))
        out.append((torch.tensor([1] + toks), label))
    return out


def collate(batch):
    ids = pad_sequence([b[0] for b in batch], batch_first=True, padding_value=0)
    mask = (ids != 0).long()
    labels = torch.tensor([b[1] for b in batch])
    return ids, mask, labels


seed_everything(CFG["seed"])
examples = make_examples(CFG["batch_size"] * CFG["steps"])
loader = DataLoader(
    examples,
    batch_size=CFG["batch_size"],
    shuffle=True,
    collate_fn=collate,
    drop_last=True,
    pin_memory=use_cuda,
    generator=torch.Generator().manual_seed(1),
)

config = BertConfig(
    vocab_size=CFG["vocab"],
    hidden_size=CFG["hidden"],
    num_hidden_layers=CFG["layers"],
    num_attention_heads=CFG["heads"],
    intermediate_size=4 * CFG["hidden"],
    max_position_embeddings=max(64, CFG["max_len"]),
    num_labels=CFG["num_labels"],
    attn_implementation="eager",
)
model = BertForSequenceClassification(config)
model.to(device)
model.train()

no_decay = ("bias", "LayerNorm.weight")
groups = [
    {
        "params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)],
        "weight_decay": 0.01,
    },
    {
        "params": [p for n, p in model.named_parameters() if n.endswith(no_decay)],
        "weight_decay": 0.0,
    },
]
optimizer = torch.optim.AdamW(groups, lr=CFG["lr"], eps=1e-8)
scheduler = get_linear_schedule_with_warmup(optimizer, 4, CFG["steps"])
scaler = GradScaler(enabled=use_cuda, init_scale=2.0**14)

correct = seen = 0
for step, (ids, mask, labels) in enumerate(loader):
    ids = ids.to(device, non_blocking=True)
    mask = mask.to(device, non_blocking=True)
    labels = labels.to(device, non_blocking=True)

    optimizer.zero_grad()
    with autocast(device_type=device.type, dtype=amp_dtype):
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
        loss = out.loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()

    correct += (out.logits.argmax(-1) == labels).sum().item()
    seen += labels.numel()
    print("step %d loss %.6f" % (step, loss.item()))

print(f"train acc {correct / seen:.4f}")
