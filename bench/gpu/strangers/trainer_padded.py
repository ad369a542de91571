"""A decoder fine-tuned by the Trainer: sequences of very different lengths padded to the longest of
the batch, accumulation over two batches, evaluation in the middle with metrics.
"""

# tiny: --d 16 --layers 2 --longest 24 --batch 4 --vocab 100
import argparse
import os

import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

p = argparse.ArgumentParser()
p.add_argument("--d", type=int, default=768)
p.add_argument("--layers", type=int, default=8)
p.add_argument("--longest", type=int, default=700)
p.add_argument("--batch", type=int, default=24)
p.add_argument("--vocab", type=int, default=20000)
a = p.parse_args()


class Letters(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        n = int(torch.randint(a.longest // 6, a.longest, (1,), generator=g))
        return torch.randint(3, a.vocab, (n,), generator=g)


def collate(items):
    longest = max(len(t) for t in items)
    ids = torch.zeros(len(items), longest, dtype=torch.long)
    mask = torch.zeros(len(items), longest, dtype=torch.long)
    for i, t in enumerate(items):
        ids[i, : len(t)] = t
        mask[i, : len(t)] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
    }


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step - 1} loss {logs['loss']}", flush=True)


def main():
    set_seed(3)
    model = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=a.vocab,
            hidden_size=a.d,
            num_hidden_layers=a.layers,
            num_attention_heads=max(1, a.d // 64),
            intermediate_size=4 * a.d,
            max_position_embeddings=a.longest,
            use_cache=False,
        )
    )
    Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=os.environ.get("FIT_OUT", "padded-out"),
            per_device_train_batch_size=a.batch,
            per_device_eval_batch_size=a.batch,
            gradient_accumulation_steps=2,
            max_steps=12,
            eval_strategy="steps",
            eval_steps=6,
            logging_steps=1,
            learning_rate=2e-4,
            lr_scheduler_type="cosine",
            save_strategy="no",
            report_to=[],
            remove_unused_columns=False,
            disable_tqdm=True,
        ),
        train_dataset=Letters(24 * a.batch, 0),
        eval_dataset=Letters(2 * a.batch, 10**6),
        data_collator=collate,
        compute_metrics=lambda p: {"accuracy": float((p.predictions == p.label_ids).mean())},
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        callbacks=[Print()],
    ).train()


main()
