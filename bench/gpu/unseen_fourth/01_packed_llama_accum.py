"""Pretraining with packed documents: block-diagonal mask, positions that restart per document,
accumulation over 4 micro-batches (the last group is short), loss per token of the whole group."""

import os

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

SMALL = os.environ.get("SMALL", "0") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(2024)

SEQ = 64 if SMALL else 1024
MICRO = 2 if SMALL else 10
VOCAB = 200 if SMALL else 32000
ACCUM, MICRO_BATCHES, EPOCHS = 4, 11, 3
EOS = 0


def documents(n_tokens):
    g = torch.Generator().manual_seed(5)
    total = 0
    while total < n_tokens:
        n = int(torch.randint(SEQ // 16, SEQ // 2, (1,), generator=g))
        start = int(torch.randint(1, VOCAB, (1,), generator=g))
        walk = torch.randint(-3, 9, (n,), generator=g).cumsum(0)
        yield torch.cat([(start + walk) % (VOCAB - 1) + 1, torch.tensor([EOS])])
        total += n + 1


def pack(n_rows):
    """Fills rows of SEQ tokens; a document that does not fit is cut."""
    rows, ids, seg = [], [], []
    for k, doc in enumerate(documents(n_rows * SEQ * 2)):
        doc = doc[: SEQ - sum(map(len, ids))]
        ids.append(doc)
        seg.append(torch.full((len(doc),), len(seg)))
        if sum(map(len, ids)) == SEQ:
            pos = torch.cat([torch.arange(len(d)) for d in ids])
            rows.append((torch.cat(ids), pos, torch.cat(seg)))
            ids, seg = [], []
        if len(rows) == n_rows:
            return rows


def collate(rows):
    ids, pos, seg = (torch.stack(x) for x in zip(*rows))
    labels = ids.clone()
    labels[pos == 0] = -100  # nothing predicts the first token of a document
    causal = torch.ones(SEQ, SEQ, dtype=torch.bool).tril()
    mask = (seg[:, :, None] == seg[:, None, :]) & causal
    return {"ids": ids, "pos": pos, "labels": labels, "mask": mask[:, None]}


config = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=64 if SMALL else 768,
    intermediate_size=128 if SMALL else 2048,
    num_hidden_layers=2 if SMALL else 10,
    num_attention_heads=4 if SMALL else 12,
    num_key_value_heads=2 if SMALL else 4,
    max_position_embeddings=SEQ,
    attn_implementation="sdpa",
)
model = LlamaForCausalLM(config).to(device)
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=3e-4,
    betas=(0.9, 0.95),
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4))

rows = pack(MICRO * MICRO_BATCHES)
micro = [collate(rows[i : i + MICRO]) for i in range(0, len(rows), MICRO)]

step = 0
for epoch in range(EPOCHS):
    for first in range(0, len(micro), ACCUM):
        group = micro[first : first + ACCUM]
        tokens = sum(int((b["labels"][:, 1:] != -100).sum()) for b in group)
        running = torch.zeros((), device=device)
        for b in group:
            b = {k: v.to(device, non_blocking=True) for k, v in b.items()}
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(
                    input_ids=b["ids"],
                    position_ids=b["pos"],
                    attention_mask=b["mask"],
                    use_cache=False,
                ).logits
            loss = F.cross_entropy(
                logits[:, :-1].float().reshape(-1, VOCAB),
                b["labels"][:, 1:].reshape(-1),
                ignore_index=-100,
                reduction="sum",
            )
            loss = loss / tokens
            loss.backward()
            running += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {running.item():.8f}", flush=True)
        step += 1
