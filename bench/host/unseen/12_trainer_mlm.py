"""Hugging Face's Trainer: masked language model with padding, accumulation and evaluation."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)


class Rows(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = [
            torch.randint(5, 3000, (int(torch.randint(60, 128, (), generator=g)),), generator=g)
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


def collate(rows):
    longest = max(len(r["input_ids"]) for r in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, : len(r["input_ids"])] = r["input_ids"]
    labels = ids.clone()
    masked = (torch.arange(ids.numel()).view_as(ids) % 7 == 0) & (ids != 0)
    labels[~masked] = -100
    return {
        "input_ids": ids.masked_fill(masked, 4),
        "attention_mask": (ids != 0).long(),
        "labels": labels,
    }


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        for key in ("loss", "eval_loss"):
            if key in logs:
                print("%s %.8g" % (key, float(logs[key])), flush=True)


config = BertConfig(
    vocab_size=3000, hidden_size=192, num_hidden_layers=5, num_attention_heads=6,
    intermediate_size=768, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
torch.manual_seed(0)
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(
        out, per_device_train_batch_size=32, per_device_eval_batch_size=32, max_steps=2,
        gradient_accumulation_steps=2, logging_steps=1, eval_strategy="steps", eval_steps=1,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
        learning_rate=5e-4,
    )  # fmt: skip
    Trainer(
        BertForMaskedLM(config), args, train_dataset=Rows(160, 1), eval_dataset=Rows(32, 2),
        data_collator=collate, callbacks=[Print()],
    ).train()  # fmt: skip
