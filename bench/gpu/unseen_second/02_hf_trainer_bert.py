"""Fine-tune a BERT-like classifier (random weights) with the HF Trainer."""

import os

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
tiny = bool(int(os.environ.get("TINY", "0")))
set_seed(42)

VOCAB = 200 if tiny else 21128
MAXLEN = 24 if tiny else 384
NUM_LABELS = 5


class Reviews(Dataset):
    """Random 'reviews' of different lengths, padded by the collator below."""

    def __init__(self, n, seed):
        g = np.random.default_rng(seed)
        self.items = []
        for _ in range(n):
            length = int(g.integers(MAXLEN // 2, MAXLEN + 1))
            self.items.append(
                {
                    "input_ids": g.integers(5, VOCAB, length).tolist(),
                    "labels": int(g.integers(0, NUM_LABELS)),
                }
            )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    mask = torch.zeros(len(features), longest, dtype=torch.long)
    for row, f in enumerate(features):
        n = len(f["input_ids"])
        ids[row, :n] = torch.tensor(f["input_ids"])
        mask[row, :n] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.tensor([f["labels"] for f in features]),
    }


class PrintingTrainer(Trainer):
    n_micro = 0

    def training_step(self, model, inputs, *args, **kwargs):
        loss = super().training_step(model, inputs, *args, **kwargs)
        print(f"step {self.n_micro} loss {loss.item():.9f}", flush=True)
        self.n_micro += 1
        return loss


def compute_metrics(p):
    preds = np.argmax(p.predictions, axis=1)
    return {"accuracy": float((preds == p.label_ids).mean())}


def main():
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=32 if tiny else 768,
        num_hidden_layers=2 if tiny else 12,
        num_attention_heads=2 if tiny else 12,
        intermediate_size=64 if tiny else 3072,
        max_position_embeddings=512,
        num_labels=NUM_LABELS,
    )
    model = BertForSequenceClassification(config)
    bs = 2 if tiny else 16
    args = TrainingArguments(
        output_dir="/tmp/bert_reviews_out",
        per_device_train_batch_size=bs,
        per_device_eval_batch_size=bs * 2,
        gradient_accumulation_steps=2,
        max_steps=12,
        learning_rate=5e-5,
        warmup_steps=2,
        weight_decay=0.01,
        lr_scheduler_type="linear",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        use_cpu=not torch.cuda.is_available(),
        seed=42,
    )
    trainer = PrintingTrainer(
        model=model,
        args=args,
        train_dataset=Reviews(bs * 40, seed=0),
        eval_dataset=Reviews(bs * 4, seed=1),
        data_collator=collate,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
