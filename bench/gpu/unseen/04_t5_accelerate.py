#!/usr/bin/env python
"""Seq2seq toy (reverse + shift) with T5 and accelerate, gradient accumulation 2."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor, get_constant_schedule_with_warmup


def parse_args():
    tiny = os.environ.get("SMALL") == "1"
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--d_model", default=32 if tiny else 512, type=int)
    p.add_argument("--num_layers", default=2 if tiny else 6, type=int)
    p.add_argument("--num_heads", default=2 if tiny else 8, type=int)
    p.add_argument("--vocab_size", default=120 if tiny else 16000, type=int)
    p.add_argument("--source_len", default=16 if tiny else 256, type=int)
    p.add_argument("--target_len", default=8 if tiny else 128, type=int)
    p.add_argument("--per_device_train_batch_size", default=2 if tiny else 32, type=int)
    p.add_argument("--gradient_accumulation_steps", default=2, type=int)
    p.add_argument("--max_train_steps", default=12, type=int)
    p.add_argument("--learning_rate", default=1e-3, type=float)
    p.add_argument("--seed", default=7, type=int)
    return p.parse_args()


def build_data(args):
    n = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.max_train_steps
    gen = torch.Generator().manual_seed(args.seed)
    src = torch.randint(3, args.vocab_size, (n, args.source_len), generator=gen)
    lengths = torch.randint(args.source_len // 2, args.source_len + 1, (n, 1), generator=gen)
    mask = (torch.arange(args.source_len)[None] < lengths).long()
    src = src * mask
    tgt = (src.flip(1)[:, : args.target_len] + 1) % args.vocab_size
    tgt[tgt <= 1] = -100
    return TensorDataset(src, mask, tgt)


def main():
    args = parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(args.seed)

    dataset = build_data(args)
    loader = DataLoader(dataset, batch_size=args.per_device_train_batch_size, shuffle=True)

    config = T5Config(
        vocab_size=args.vocab_size,
        d_model=args.d_model,
        d_kv=args.d_model // args.num_heads,
        d_ff=4 * args.d_model,
        num_layers=args.num_layers,
        num_heads=args.num_heads,
        decoder_start_token_id=0,
        use_cache=False,
        attn_implementation="eager",
    )
    model = T5ForConditionalGeneration(config)
    optimizer = Adafactor(
        model.parameters(),
        lr=args.learning_rate,
        scale_parameter=False,
        relative_step=False,
        warmup_init=False,
    )
    lr_scheduler = get_constant_schedule_with_warmup(optimizer, 3)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(
        model, optimizer, loader, lr_scheduler
    )

    accelerator.print(f"***** Running training on {accelerator.device} *****")
    completed, total_loss = 0, 0.0
    model.train()
    for src, mask, tgt in loader:
        with accelerator.accumulate(model):
            outputs = model(input_ids=src, attention_mask=mask, labels=tgt)
            loss = outputs.loss
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            completed += 1
            mean = total_loss.item() / args.gradient_accumulation_steps
            accelerator.print(f"step {completed} loss {mean:.6f}")
            total_loss = 0.0
        if completed >= args.max_train_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
