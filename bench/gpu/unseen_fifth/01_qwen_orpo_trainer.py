"""Preference tuning without a reference model (ORPO) of a Qwen2-like LM in a Trainer subclass."""

import os
import random
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments, set_seed

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
VOCAB = 300 if SMALL else 32000
MAX_PROMPT, MAX_ANSWER = (10, 14) if SMALL else (160, 320)
PAIRS, STEPS = (2, 8) if SMALL else (6, 11)
PAD = 0


class Preferences(Dataset):
    """A good answer counts upwards from the prompt, a bad one is noise."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            prompt = [rng.randrange(3, VOCAB) for _ in range(rng.randint(4, MAX_PROMPT))]
            length = rng.randint(MAX_ANSWER // 4, MAX_ANSWER)
            good = [(prompt[-1] + 5 * i) % (VOCAB - 3) + 3 for i in range(length)]
            bad = [rng.randrange(3, VOCAB) for _ in range(rng.randint(MAX_ANSWER // 4, MAX_ANSWER))]
            self.rows.append({"prompt": prompt, "chosen": good, "rejected": bad})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    seqs, starts = [], []
    for side in ("chosen", "rejected"):
        for r in rows:
            seqs.append(r["prompt"] + r[side] + [2])
            starts.append(len(r["prompt"]))
    width = max(map(len, seqs))
    ids = torch.full((len(seqs), width), PAD)
    labels = torch.full((len(seqs), width), -100)
    mask = torch.zeros(len(seqs), width, dtype=torch.long)
    for k, (s, p) in enumerate(zip(seqs, starts)):
        t = torch.tensor(s)
        ids[k, : len(s)] = t
        mask[k, : len(s)] = 1
        labels[k, p : len(s)] = t[p:]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class ORPOTrainer(Trainer):
    beta = 0.1

    @staticmethod
    def mean_logps(logits, labels):
        logits, labels = logits[:, :-1].float(), labels[:, 1:]
        keep = labels != -100
        logp = torch.log_softmax(logits, -1)
        picked = logp.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        return (picked * keep).sum(1) / keep.sum(1)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs, use_cache=False)
        chosen, rejected = self.mean_logps(out.logits, labels).chunk(2)
        # log odds = log p - log(1 - p)
        log_odds = (chosen - rejected) - (
            torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
        )
        loss = -chosen.mean() - self.beta * F.logsigmoid(log_odds).mean()
        return (loss, out) if return_outputs else loss

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step} loss {loss.item():.8f}", flush=True)
        return loss


def main():
    set_seed(101)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32 if SMALL else 768,
        intermediate_size=64 if SMALL else 2304,
        num_hidden_layers=2 if SMALL else 12,
        num_attention_heads=4 if SMALL else 12,
        num_key_value_heads=2 if SMALL else 4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=PAD,
    )
    model = Qwen2ForCausalLM(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=PAIRS,
            max_steps=STEPS,
            learning_rate=2e-4,
            lr_scheduler_type="cosine",
            warmup_steps=3,
            max_grad_norm=1.0,
            bf16=torch.cuda.is_available(),
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=101,
        )
        trainer = ORPOTrainer(
            model=model,
            args=args,
            train_dataset=Preferences(PAIRS * STEPS, 9),
            data_collator=collate,
        )
        trainer.train()


if __name__ == "__main__":
    main()
