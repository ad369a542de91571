"""Fine-tuning in the manner of the Whisper recipe: Seq2SeqTrainer, a collator that pads labels with
-100, frozen positions.
"""

# tiny: --d 16 --layers 1 --frames 60 --batch 4 --vocab 100 --workers 0
import argparse
import os
from dataclasses import dataclass
from typing import Any, Dict, List

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    WhisperConfig,
    WhisperForConditionalGeneration,
    set_seed,
)


@dataclass
class DataCollatorSpeechSeq2SeqWithPadding:
    decoder_start_token_id: int

    def __call__(self, features: List[Dict[str, Any]]) -> Dict[str, torch.Tensor]:
        batch = {"input_features": torch.stack([f["input_features"] for f in features])}
        longest = max(len(f["labels"]) for f in features)
        labels = torch.full((len(features), longest), -100)
        for i, f in enumerate(features):
            labels[i, : len(f["labels"])] = f["labels"]
        if (labels[:, 0] == self.decoder_start_token_id).all():
            labels = labels[:, 1:]
        batch["labels"] = labels
        return batch


class Speech(torch.utils.data.Dataset):
    def __init__(self, n, mels, frames, vocab):
        self.n, self.mels, self.frames, self.vocab = n, mels, frames, vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        length = int(torch.randint(self.frames // 30, self.frames // 8, (1,), generator=g))
        return {
            "input_features": torch.randn(self.mels, self.frames, generator=g),
            "labels": torch.randint(5, self.vocab, (length,), generator=g),
        }


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step - 1} loss {logs['loss']}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--d", type=int, default=512)
    ap.add_argument("--layers", type=int, default=6)
    ap.add_argument("--frames", type=int, default=3000)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--vocab", type=int, default=20000)
    ap.add_argument("--workers", type=int, default=2)
    a = ap.parse_args()
    set_seed(42)
    config = WhisperConfig(
        vocab_size=a.vocab,
        d_model=a.d,
        encoder_layers=a.layers,
        decoder_layers=a.layers,
        encoder_attention_heads=max(1, a.d // 64),
        decoder_attention_heads=max(1, a.d // 64),
        encoder_ffn_dim=4 * a.d,
        decoder_ffn_dim=4 * a.d,
        max_source_positions=a.frames // 2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    model.config.use_cache = False
    args = Seq2SeqTrainingArguments(
        output_dir=os.environ.get("FIT_OUT", "whisper-out"),
        per_device_train_batch_size=a.batch,
        learning_rate=1e-4,
        warmup_steps=5,
        max_steps=20,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=a.workers,
        max_grad_norm=1.0,
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(
        args=args,
        model=model,
        train_dataset=Speech(20 * a.batch, 80, a.frames, a.vocab),
        data_collator=DataCollatorSpeechSeq2SeqWithPadding(3),
        callbacks=[PrintLoss()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
