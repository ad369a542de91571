"""A Qwen2 student learns from a larger frozen teacher: a Trainer with its own compute_loss, answers
only, sequences of different lengths.
"""

# tiny: --hidden 32 --layers 1 --vocab 200 --batch 4 --longest 24
import argparse
import os

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Conversations(Dataset):
    def __init__(self, n, longest, vocab):
        g = torch.Generator().manual_seed(31)
        self.rows = []
        for _ in range(n):
            ids = torch.randint(
                2,
                vocab,
                (int(torch.randint(longest // 2, longest + 1, (1,), generator=g)),),
                generator=g,
            )
            labels = ids.clone()
            labels[: len(ids) // 3] = -100
            self.rows.append({"input_ids": ids, "labels": labels})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad(rows):
    longest = max(len(r["input_ids"]) for r in rows)
    out = {
        "input_ids": torch.zeros(len(rows), longest, dtype=torch.long),
        "labels": torch.full((len(rows), longest), -100),
        "attention_mask": torch.zeros(len(rows), longest, dtype=torch.long),
    }
    for i, r in enumerate(rows):
        n = len(r["input_ids"])
        out["input_ids"][i, :n], out["labels"][i, :n], out["attention_mask"][i, :n] = (
            r["input_ids"],
            r["labels"],
            1,
        )
    return out


class DistillationTrainer(Trainer):
    def __init__(self, *args, teacher_model=None, temperature=2.0, alpha=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher, self.temperature, self.alpha = (
            teacher_model.to(self.args.device).eval(),
            temperature,
            alpha,
        )

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        with torch.no_grad():
            teacher_logits = self.teacher(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
            ).logits
        t = self.temperature
        keep = inputs["labels"][:, 1:] != -100
        student, teacher = outputs.logits[:, :-1][keep], teacher_logits[:, :-1][keep]
        kd = (
            F.kl_div(
                F.log_softmax(student / t, -1), F.softmax(teacher / t, -1), reduction="batchmean"
            )
            * t
            * t
        )
        loss = self.alpha * outputs.loss + (1 - self.alpha) * kd
        return (loss, outputs) if return_outputs else loss


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step - 1} loss {logs['loss']}", flush=True)


def build(hidden, layers, vocab):
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=hidden * 3,
            num_hidden_layers=layers,
            num_attention_heads=max(2, hidden // 64),
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            use_cache=False,
        )
    )


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--hidden", type=int, default=512)
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--vocab", type=int, default=24000)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--longest", type=int, default=640)
    a = ap.parse_args()
    set_seed(3)
    teacher, student = build(a.hidden * 2, a.layers, a.vocab), build(a.hidden, a.layers, a.vocab)
    args = TrainingArguments(
        output_dir=os.environ.get("FIT_OUT", "kd-out"),
        per_device_train_batch_size=a.batch,
        max_steps=20,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = DistillationTrainer(
        model=student,
        teacher_model=teacher,
        args=args,
        train_dataset=Conversations(20 * a.batch, a.longest, a.vocab),
        data_collator=pad,
        callbacks=[Say()],
    )
    trainer.train()
