#!/usr/bin/env python
"""Abstractive summarisation with BART and Seq2SeqTrainer (synthetic articles)."""

import logging
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)

logging.basicConfig(level=logging.WARNING)
CUDA = torch.cuda.is_available()

MAX_SOURCE = 1024 if CUDA else 32
MAX_TARGET = 160 if CUDA else 10
VOCAB = 30000 if CUDA else 120
BATCH = 12 if CUDA else 2
PAD, BOS, EOS = 1, 0, 2


class SummaryDataset(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.examples = []
        for _ in range(n):
            n_src = int(rng.integers(MAX_SOURCE * 3 // 4, MAX_SOURCE + 1))
            n_tgt = int(rng.integers(MAX_TARGET // 2, MAX_TARGET + 1))
            # zipf-like so that there is something to learn
            src = np.minimum(rng.zipf(1.3, n_src) + 3, VOCAB - 1)
            tgt = src[:n_tgt].copy()
            src[0], src[-1], tgt[-1] = BOS, EOS, EOS
            self.examples.append((src.tolist(), tgt.tolist()))

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        s, t = self.examples[i]
        return {"input_ids": s, "labels": t}


class Seq2SeqCollator:
    def __init__(self, decoder_start):
        self.decoder_start = decoder_start

    def __call__(self, features):
        ls = max(len(f["input_ids"]) for f in features)
        lt = max(len(f["labels"]) for f in features)
        ids = torch.full((len(features), ls), PAD)
        labels = torch.full((len(features), lt), -100)
        for i, f in enumerate(features):
            ids[i, : len(f["input_ids"])] = torch.tensor(f["input_ids"])
            labels[i, : len(f["labels"])] = torch.tensor(f["labels"])
        dec = labels.roll(1, dims=1)
        dec[:, 0] = self.decoder_start
        dec = dec.masked_fill(dec == -100, PAD)
        return {
            "input_ids": ids,
            "attention_mask": (ids != PAD).long(),
            "labels": labels,
            "decoder_input_ids": dec,
        }


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(
                f"step {state.global_step} loss {float(logs['loss']):.8f} "
                f"lr {logs['learning_rate']}",
                flush=True,
            )
        elif logs and "eval_loss" in logs:
            print(f"eval at {state.global_step}: {logs['eval_loss']:.6f}", flush=True)


def main():
    set_seed(2024)
    config = BartConfig(
        vocab_size=VOCAB,
        d_model=768 if CUDA else 32,
        encoder_layers=6 if CUDA else 1,
        decoder_layers=6 if CUDA else 1,
        encoder_attention_heads=12 if CUDA else 2,
        decoder_attention_heads=12 if CUDA else 2,
        encoder_ffn_dim=3072 if CUDA else 64,
        decoder_ffn_dim=3072 if CUDA else 64,
        max_position_embeddings=1024 if CUDA else 64,
        dropout=0.0,
        use_cache=False,
    )
    model = BartForConditionalGeneration(config)
    steps = 8 if CUDA else 2
    train = SummaryDataset(BATCH * 2 * steps, seed=1)
    evald = SummaryDataset(BATCH * 2, seed=2)

    with tempfile.TemporaryDirectory() as out:
        targs = Seq2SeqTrainingArguments(
            output_dir=out,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            gradient_accumulation_steps=2,
            max_steps=steps,
            learning_rate=1e-4,
            warmup_steps=1,
            lr_scheduler_type="polynomial",
            label_smoothing_factor=0.1,
            bf16=CUDA,
            eval_strategy="steps",
            eval_steps=steps // 2,
            prediction_loss_only=True,
            save_strategy="no",
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=0,
            seed=2024,
        )
        trainer = Seq2SeqTrainer(
            model=model,
            args=targs,
            train_dataset=train,
            eval_dataset=evald,
            data_collator=Seq2SeqCollator(config.decoder_start_token_id),
            callbacks=[PrintLoss()],
        )
        trainer.remove_callback(PrinterCallback)
        result = trainer.train()
        print("mean over the run:", result.training_loss)


if __name__ == "__main__":
    main()
