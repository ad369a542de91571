"""
Instruction tuning of a small LLaMA with LoRA adapters.
Completion-only loss, dynamic padding, gradient accumulation, cosine schedule.
(weights are random here, swap in your checkpoint)
"""

import math
import os
import random
import tempfile
from dataclasses import dataclass, field

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

CUDA = torch.cuda.is_available()
IGNORE = -100


@dataclass
class Args:
    seed: int = 1234
    vocab: int = 32000 if CUDA else 200
    hidden: int = 1024 if CUDA else 32
    layers: int = 8 if CUDA else 2
    heads: int = 16 if CUDA else 2
    max_len: int = 1024 if CUDA else 24
    per_device_batch: int = 6 if CUDA else 2
    grad_accum: int = 2
    steps: int = 7 if CUDA else 2
    lr: float = 2e-4
    warmup: int = 2
    lora_r: int = 16
    lora_alpha: int = 32
    lora_targets: list = field(
        default_factory=lambda: [
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ]
    )


class InstructionData(Dataset):
    """prompt + answer pairs, of random lengths; the answer repeats pieces of the prompt"""

    def __init__(self, n, args):
        rng = random.Random(args.seed)
        self.items = []
        for _ in range(n):
            total = rng.randint(int(args.max_len * 0.6), args.max_len)
            p = total // 3
            prompt = [rng.randint(3, args.vocab - 1) for _ in range(p)]
            answer = [prompt[(i * 3) % p] for i in range(total - p - 1)] + [2]
            self.items.append((prompt, answer))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        prompt, answer = self.items[i]
        return {"input_ids": prompt + answer, "labels": [IGNORE] * len(prompt) + answer}


class PadCollator:
    def __init__(self, pad_id=0, multiple=8):
        self.pad_id, self.multiple = pad_id, multiple

    def __call__(self, feats):
        longest = max(len(f["input_ids"]) for f in feats)
        longest = math.ceil(longest / self.multiple) * self.multiple
        ids, labels, mask = [], [], []
        for f in feats:
            k = longest - len(f["input_ids"])
            ids.append(f["input_ids"] + [self.pad_id] * k)
            labels.append(f["labels"] + [IGNORE] * k)
            mask.append([1] * len(f["input_ids"]) + [0] * k)
        return {
            "input_ids": torch.tensor(ids),
            "labels": torch.tensor(labels),
            "attention_mask": torch.tensor(mask),
        }


def build(args):
    cfg = LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.heads // 2,
        intermediate_size=int(args.hidden * 2.75),
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
    )
    base = LlamaForCausalLM(cfg)
    lora = LoraConfig(
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=0.0,
        target_modules=args.lora_targets,
        bias="none",
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora)
    model.print_trainable_parameters()
    return model


def main():
    args = Args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if CUDA else "cpu")
    model = build(args).to(device)
    data = InstructionData(args.per_device_batch * args.grad_accum * args.steps, args)
    loader = DataLoader(
        data,
        batch_size=args.per_device_batch,
        shuffle=True,
        collate_fn=PadCollator(),
        generator=torch.Generator().manual_seed(args.seed),
    )
    trainable = [p for p in model.parameters() if p.requires_grad]
    optim = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0)
    sched = get_cosine_schedule_with_warmup(optim, args.warmup, args.steps)

    model.train()
    running, opt_step = 0.0, 0
    for i, batch in enumerate(loader):
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out = model(**batch)
        loss = out.loss / args.grad_accum
        loss.backward()
        running += loss.item()
        if (i + 1) % args.grad_accum == 0:
            gnorm = torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optim.step()
            sched.step()
            optim.zero_grad(set_to_none=True)
            opt_step += 1
            print(
                f"step {opt_step} loss {running:.8f} gnorm {gnorm.item():.4f} "
                f"lr {sched.get_last_lr()[0]:.2e}",
                flush=True,
            )
            running = 0.0

    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        print("adapter files:", sorted(os.listdir(tmp)))


if __name__ == "__main__":
    main()
