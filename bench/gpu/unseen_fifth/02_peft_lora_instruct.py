"""LoRA through peft on a frozen bf16 Llama: loss on the answers only, accelerate."""

import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

on_gpu = torch.cuda.is_available()
cfg = {
    "hidden": 2048 if on_gpu else 64,
    "ffn": 5632 if on_gpu else 96,
    "layers": 16 if on_gpu else 2,
    "heads": 16 if on_gpu else 4,
    "kv": 8 if on_gpu else 2,
    "vocab": 32000 if on_gpu else 256,
    "len": 640 if on_gpu else 24,
    "micro": 4 if on_gpu else 2,
    "accum": 2,
    "opt_steps": 9,
    "rank": 32 if on_gpu else 4,
}


def instruction_rows(n):
    g = torch.Generator().manual_seed(55)
    rows = []
    for _ in range(n):
        q = int(torch.randint(cfg["len"] // 8, cfg["len"] // 2, (1,), generator=g))
        a = int(torch.randint(cfg["len"] // 4, cfg["len"] // 2, (1,), generator=g))
        question = torch.randint(3, cfg["vocab"], (q,), generator=g)
        answer = question.repeat(math.ceil(a / q))[:a].flip(0)
        rows.append((question, answer))
    return rows


def pad_left_none_right_all(rows):
    longest = max(len(q) + len(a) for q, a in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for i, (q, a) in enumerate(rows):
        n = len(q) + len(a)
        ids[i, :n] = torch.cat([q, a])
        labels[i, len(q) : n] = a
        mask[i, :n] = 1
    return ids, mask, labels


def build(device):
    with torch.device(device):
        base = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=cfg["vocab"],
                hidden_size=cfg["hidden"],
                intermediate_size=cfg["ffn"],
                num_hidden_layers=cfg["layers"],
                num_attention_heads=cfg["heads"],
                num_key_value_heads=cfg["kv"],
                max_position_embeddings=2048,
            )
        )
    base = base.to(torch.bfloat16)
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=cfg["rank"],
        lora_alpha=2 * cfg["rank"],
        lora_dropout=0.05,
        target_modules=[
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ],
    )
    return get_peft_model(base, lora)


set_seed(1234)
accelerator = Accelerator(gradient_accumulation_steps=cfg["accum"])
model = build(accelerator.device)
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=3e-4, weight_decay=0.0)
loader = DataLoader(
    instruction_rows(cfg["micro"] * cfg["accum"] * cfg["opt_steps"]),
    batch_size=cfg["micro"],
    shuffle=True,
    collate_fn=pad_left_none_right_all,
)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

model.train()
total, step = 0.0, 0
for ids, mask, labels in loader:
    with accelerator.accumulate(model):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].reshape(-1, logits.size(-1)).float(),
            labels[:, 1:].reshape(-1),
            ignore_index=-100,
        )
        accelerator.backward(loss)
        total += loss.item() / cfg["accum"]
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(trainable, 0.3)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        print(f"step {step} loss {total:.8f}", flush=True)
        total, step = 0.0, step + 1
