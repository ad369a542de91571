"""Distil-Whisper: a two-layer decoder learns from a frozen teacher, KL + CE, HF Trainer."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
    set_seed,
)

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POSITIONS, MELS, VOCAB = (20, 16, 120) if SMALL else (750, 80, 51865)
BATCH, STEPS, TEXT = (2, 8, (3, 8)) if SMALL else (3, 11, (40, 110))
PAD, START, END = 0, 1, 2


def whisper(decoder_layers):
    wide = 32 if SMALL else 1024
    config = WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=MELS,
        d_model=wide,
        encoder_layers=2 if SMALL else 16,
        decoder_layers=decoder_layers,
        encoder_attention_heads=4 if SMALL else 16,
        decoder_attention_heads=4 if SMALL else 16,
        encoder_ffn_dim=2 * wide if SMALL else 4 * wide,
        decoder_ffn_dim=2 * wide if SMALL else 4 * wide,
        max_source_positions=POSITIONS,
        max_target_positions=128,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    with torch.device(DEVICE):
        return WhisperForConditionalGeneration(config)


class Speech(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(190)
        self.text = []
        for _ in range(n):
            k = int(torch.randint(*TEXT, (1,), generator=g))
            self.text.append(torch.randint(3, VOCAB, (k,), generator=g))

    def __len__(self):
        return len(self.text)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        mel = 0.3 * torch.randn(MELS, 2 * POSITIONS, generator=g)
        hop = 2 * POSITIONS // len(self.text[i])
        for j, c in enumerate(self.text[i].tolist()):
            mel[c % MELS, j * hop : (j + 1) * hop] += 1.5
        return mel, self.text[i]


def collate(items):
    longest = max(len(t) for _, t in items) + 1
    labels = torch.full((len(items), longest), -100)
    for row, (_, t) in zip(labels, items):
        row[: len(t)] = t
        row[len(t)] = END
    return {"input_features": torch.stack([m for m, _ in items]), "labels": labels}


class DistilTrainer(Trainer):
    teacher = None
    temperature, kl_weight = 2.0, 0.8

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        decoder_ids = labels.clone().roll(1, 1)
        decoder_ids[:, 0] = START
        decoder_ids = decoder_ids.masked_fill(decoder_ids == -100, PAD)
        feed = {"decoder_input_ids": decoder_ids, "use_cache": False}
        with torch.no_grad():
            features = inputs["input_features"].to(self.teacher.dtype)
            teacher = self.teacher(input_features=features, **feed).logits.float()
        out = model(input_features=inputs["input_features"], **feed)
        student, t = out.logits.float(), self.temperature
        keep = labels != -100
        ce = F.cross_entropy(student[keep], labels[keep])
        kl = F.kl_div(
            F.log_softmax(student[keep] / t, -1),
            F.log_softmax(teacher[keep] / t, -1),
            log_target=True,
            reduction="batchmean",
        )
        loss = ce + self.kl_weight * t * t * kl
        return (loss, out) if return_outputs else loss

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step} loss {loss.item():.8f}", flush=True)
        return loss


def main():
    set_seed(19)
    teacher, student = whisper(3 if SMALL else 10), whisper(2)
    student.model.encoder.load_state_dict(teacher.model.encoder.state_dict())
    for mine, theirs in zip(student.model.decoder.layers, (0, -1)):
        mine.load_state_dict(teacher.model.decoder.layers[theirs].state_dict())
    teacher = teacher.eval().requires_grad_(False)
    if not SMALL:
        teacher = teacher.to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=1e-4,
            lr_scheduler_type="linear",
            warmup_steps=3,
            bf16=torch.cuda.is_available(),
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=19,
        )
        trainer = DistilTrainer(
            model=student, args=args, train_dataset=Speech(BATCH * STEPS), data_collator=collate
        )
        trainer.teacher = teacher
        trainer.train()


if __name__ == "__main__":
    main()
