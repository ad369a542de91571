"""Continue-pretraining of a RoBERTa-like encoder with masked tokens, HF Trainer, eval every 7 steps."""  # noqa: E501

import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

SMALL = os.environ.get("SMALL") == "1"
VOCAB = 300 if SMALL else 50265
LENGTH = 32 if SMALL else 320
BATCH = 2 if SMALL else 20
PAD, MASK = 1, 4


class Corpus(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.docs = [
            rng.integers(5, VOCAB, rng.integers(LENGTH // 4, LENGTH + 1)) for _ in range(n)
        ]

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        return {"input_ids": self.docs[i]}


class MaskingCollator:
    """Dynamic masking; how many tokens are masked differs from document to document."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        longest = max(len(r["input_ids"]) for r in rows)
        longest = (longest + 7) // 8 * 8
        ids = torch.full((len(rows), longest), PAD)
        for i, r in enumerate(rows):
            ids[i, : len(r["input_ids"])] = torch.from_numpy(r["input_ids"])
        real = ids != PAD
        rate = torch.rand(len(rows), 1, generator=self.g) * 0.3 + 0.05
        chosen = (torch.rand(ids.shape, generator=self.g) < rate) & real
        chosen[:, 0] = True
        labels = ids.masked_fill(~chosen, -100)
        dice = torch.rand(ids.shape, generator=self.g)
        ids = torch.where(chosen & (dice < 0.8), torch.full_like(ids, MASK), ids)
        noise = torch.randint(5, VOCAB, ids.shape, generator=self.g)
        ids = torch.where(chosen & (dice > 0.9), noise, ids)
        return {"input_ids": ids, "attention_mask": real.long(), "labels": labels}


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.9f}", flush=True)
        if logs and "eval_loss" in logs:
            print(f"   eval at {state.global_step}: eval_loss = {float(logs['eval_loss']):.7f}")


def main():
    set_seed(11)
    config = RobertaConfig(
        vocab_size=VOCAB,
        hidden_size=48 if SMALL else 768,
        num_hidden_layers=2 if SMALL else 12,
        num_attention_heads=4 if SMALL else 12,
        intermediate_size=96 if SMALL else 3072,
        max_position_embeddings=LENGTH + 16,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.0,
        type_vocab_size=1,
    )
    model = RobertaForMaskedLM(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=14,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            gradient_accumulation_steps=2,
            learning_rate=1e-4,
            warmup_steps=3,
            weight_decay=0.01,
            adam_beta2=0.98,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=7,
            prediction_loss_only=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            seed=11,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=Corpus(BATCH * 2 * 16, seed=0),
            eval_dataset=Corpus(BATCH * 3, seed=1),
            data_collator=MaskingCollator(seed=2),
            callbacks=[Printer()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
