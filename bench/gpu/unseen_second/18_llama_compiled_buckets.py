import os
import random

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

# pretraining a little llama: bf16 autocast, torch.compile, two micro-batches per update,
# sequences padded to one of a few lengths so that compile does not go on forever

TINY = os.environ.get("TINY") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 123
random.seed(SEED)
torch.manual_seed(SEED)

BUCKETS = [16, 32] if TINY else [256, 512]
MICRO_BATCH = 2 if TINY else 16
ACCUM = 2
UPDATES = 12

config = LlamaConfig(
    vocab_size=128 if TINY else 8192,
    hidden_size=32 if TINY else 640,
    intermediate_size=64 if TINY else 1728,
    num_hidden_layers=2 if TINY else 12,
    num_attention_heads=4 if TINY else 10,
    num_key_value_heads=2 if TINY else 5,
    max_position_embeddings=1024,
    use_cache=False,
)
model = LlamaForCausalLM(config).to(device)
model.train()
compiled = torch.compile(model)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")

optimizer = torch.optim.AdamW(
    model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=(device == "cuda")
)


def lr_at(u):
    return 3e-4 * min(1.0, (u + 1) / 4) * (1 - 0.9 * u / UPDATES)


def documents():
    while True:
        n = random.randint(BUCKETS[0] // 2, BUCKETS[-1])
        yield torch.randint(3, config.vocab_size, (n,))


def micro_batches():
    docs = documents()
    while True:
        rows = [next(docs) for _ in range(MICRO_BATCH)]
        longest = max(len(r) for r in rows)
        target = next(b for b in BUCKETS if b >= longest)
        ids = pad_sequence(rows, batch_first=True, padding_value=0)
        ids = torch.nn.functional.pad(ids, (0, target - ids.size(1)))
        mask = (ids != 0).long()
        labels = ids.masked_fill(mask == 0, -100)
        yield ids.to(device), mask.to(device), labels.to(device)


stream = micro_batches()
for update in range(UPDATES):
    for g in optimizer.param_groups:
        g["lr"] = lr_at(update)
    optimizer.zero_grad(set_to_none=True)
    for micro in range(ACCUM):
        ids, mask, labels = next(stream)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            out = compiled(input_ids=ids, attention_mask=mask, labels=labels)
        (out.loss / ACCUM).backward()
        print(f"step {update * ACCUM + micro} loss {out.loss.item():.9f}", flush=True)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
