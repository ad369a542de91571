"""Small GPT-NeoX pre-training on packed token blocks, fp16 autocast + GradScaler.

python 01_gptneox_fp16_pretrain.py --batch_size 16 --block 1024
"""

import argparse
import math
import time

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

CUDA = torch.cuda.is_available()


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--batch_size", type=int, default=12 if CUDA else 2)
    p.add_argument("--block", type=int, default=768 if CUDA else 32)
    p.add_argument("--vocab", type=int, default=32000 if CUDA else 128)
    p.add_argument("--width", type=int, default=512 if CUDA else 32)
    p.add_argument("--depth", type=int, default=8 if CUDA else 2)
    p.add_argument("--heads", type=int, default=8 if CUDA else 2)
    p.add_argument("--steps", type=int, default=10 if CUDA else 3)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=1234)
    return p.parse_args()


class PackedBlocks(Dataset):
    """A long stream of zipf-like tokens cut into equal blocks."""

    def __init__(self, n_blocks, block, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        u = torch.rand(n_blocks * block, generator=g)
        self.stream = (vocab * u.pow(3)).long().clamp_(max=vocab - 1)
        self.block = block

    def __len__(self):
        return self.stream.numel() // self.block

    def __getitem__(self, i):
        return self.stream[i * self.block : (i + 1) * self.block]


def param_groups(model, wd):
    decay, no_decay = [], []
    for _, p in model.named_parameters():
        (decay if p.ndim > 1 else no_decay).append(p)
    return [{"params": decay, "weight_decay": wd}, {"params": no_decay, "weight_decay": 0.0}]


def lr_at(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    frac = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * frac)))


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if CUDA else "cpu")

    cfg = GPTNeoXConfig(
        vocab_size=args.vocab,
        hidden_size=args.width,
        num_hidden_layers=args.depth,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.width,
        max_position_embeddings=args.block,
        use_cache=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPTNeoXForCausalLM(cfg).to(device)
    model.train()
    n = sum(p.numel() for p in model.parameters())
    print(f"{n / 1e6:.1f}M parameters")

    ds = PackedBlocks(args.batch_size * args.steps, args.block, args.vocab, args.seed)
    dl = DataLoader(
        ds,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(args.seed),
    )
    optim = torch.optim.AdamW(param_groups(model, 0.1), lr=args.lr, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cuda", enabled=CUDA, init_scale=1024.0)

    t0 = time.time()
    tokens = 0
    for step, ids in enumerate(dl):
        for group in optim.param_groups:
            group["lr"] = lr_at(step, args)
        ids = ids.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.float16, enabled=CUDA):
            out = model(input_ids=ids, labels=ids)
        scaler.scale(out.loss).backward()
        scaler.unscale_(optim)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optim)
        scaler.update()
        optim.zero_grad(set_to_none=True)
        tokens += ids.numel()
        print(f"step {step} loss {out.loss.item():.8f} gnorm {norm.item():.3f}", flush=True)
    print(f"{tokens / (time.time() - t0):.0f} tokens/s")


if __name__ == "__main__":
    main()
