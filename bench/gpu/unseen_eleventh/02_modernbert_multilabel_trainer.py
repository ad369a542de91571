"""Multi-label tagging of long documents with ModernBERT and the Hugging Face Trainer."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    ModernBertConfig,
    ModernBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
batch_size = 48 if large else 4
max_len = 640 if large else 48
n_labels = 24
vocab = 6000 if large else 300


class Documents(Dataset):
    """Every topic has its own words; a document mixes the words of one to four topics."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        words = torch.randint(10, vocab, (n_labels, 30), generator=torch.Generator().manual_seed(1))
        self.items = []
        for _ in range(n):
            k = int(torch.randint(1, 5, (1,), generator=g))
            topics = torch.randperm(n_labels, generator=g)[:k]
            length = int(torch.randint(max_len // 2, max_len - 1, (1,), generator=g))
            which = topics[torch.randint(0, k, (length,), generator=g)]
            body = words[which, torch.randint(0, 30, (length,), generator=g)]
            noise = torch.rand(length, generator=g) < 0.3
            body = torch.where(noise, torch.randint(10, vocab, (length,), generator=g), body)
            target = torch.zeros(n_labels)
            target[topics] = 1.0
            self.items.append((torch.cat([torch.tensor([1]), body, torch.tensor([2])]), target))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    ids = torch.zeros(len(items), max_len, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (tokens, _) in enumerate(items):
        tokens = tokens[:max_len]
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.stack([target for _, target in items]),
    }


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        for key in ("loss", "eval_loss"):
            if key in (logs or {}):
                print(f"step {state.global_step} {key} {logs[key]:.6f}", flush=True)


def main():
    set_seed(7)
    config = ModernBertConfig(
        vocab_size=vocab,
        hidden_size=512 if large else 64,
        intermediate_size=768 if large else 96,
        num_hidden_layers=10 if large else 3,
        num_attention_heads=8 if large else 4,
        max_position_embeddings=1024,
        local_attention=128 if large else 16,
        pad_token_id=0,
        cls_token_id=1,
        bos_token_id=1,
        sep_token_id=2,
        eos_token_id=2,
        num_labels=n_labels,
        problem_type="multi_label_classification",
        attn_implementation="sdpa",
    )
    model = ModernBertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=batch_size,
            max_steps=10,
            learning_rate=5e-4,
            warmup_steps=2,
            weight_decay=0.01,
            bf16=large,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=5,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=7,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=Documents(batch_size * 10, 2),
            eval_dataset=Documents(batch_size, 3),
            data_collator=collate,
            callbacks=[PrintLoss()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
