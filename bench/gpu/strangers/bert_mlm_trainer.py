# HF Trainer: masked language model with attention masks from a collator that pads to the longest,
# warm-up, evaluation every few steps with a larger batch. tiny: --hidden 24 --layers 2 --batch 6
# --max-length 24 --vocab 60 --cpu --steps 4
import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=768)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--max-length", type=int, default=384)
parser.add_argument("--vocab", type=int, default=30522)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
set_seed(7)


class Corpus(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = [
            torch.randint(
                5,
                args.vocab,
                (int(torch.randint(args.max_length // 2, args.max_length + 1, (1,), generator=g)),),
                generator=g,
            )
            for _ in range(count)
        ]
        self.rows[0] = torch.randint(5, args.vocab, (args.max_length,), generator=g)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "index": i}


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, f in enumerate(features):
        n = len(f["input_ids"])
        ids[row, :n], mask[row, :n] = f["input_ids"], 1
        chosen = torch.rand(n, generator=torch.Generator().manual_seed(f["index"])) < 0.15
        labels[row, :n][chosen] = f["input_ids"][chosen]
        ids[row, :n][chosen] = 4
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Printer(TrainerCallback):
    def on_log(self, a, state, control, logs=None, **kw):
        if "loss" in logs:
            print("step %d loss %.9g" % (state.global_step - 1, logs["loss"]), flush=True)
        elif "eval_loss" in logs:
            print("eval %.5g" % logs["eval_loss"], flush=True)


config = BertConfig(
    vocab_size=args.vocab,
    hidden_size=args.hidden,
    num_hidden_layers=args.layers,
    num_attention_heads=args.hidden // 12 if args.hidden < 100 else 12,
    intermediate_size=4 * args.hidden,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForMaskedLM(config)
with tempfile.TemporaryDirectory() as out:
    settings = TrainingArguments(
        out,
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=2 * args.batch,
        max_steps=args.steps,
        learning_rate=1e-4,
        warmup_steps=3,
        weight_decay=0.01,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=10,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
        disable_tqdm=True,
        use_cpu=args.cpu,
        seed=7,
    )
    trainer = Trainer(
        model=model,
        args=settings,
        train_dataset=Corpus(args.batch * args.steps, 1),
        eval_dataset=Corpus(3 * args.batch, 2),
        data_collator=collate,
        callbacks=[Printer()],
    )
    trainer.train()
