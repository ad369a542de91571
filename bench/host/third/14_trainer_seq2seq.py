"""Hugging Face's Trainer on a BART from its configuration, labels padded, accumulation 2."""

import tempfile

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

torch.set_num_threads(1)
torch.manual_seed(16)


def pair(i):
    g = torch.Generator().manual_seed(i)
    n, m = (int(torch.randint(40, 110, (), generator=g)) for _ in range(2))
    return {
        "input_ids": torch.randint(5, 4000, (n,), generator=g),
        "labels": torch.randint(5, 4000, (m,), generator=g),
    }


def collate(rows):
    def pad(key, value):
        return torch.nn.utils.rnn.pad_sequence([r[key] for r in rows], True, value)

    ids = pad("input_ids", 1)
    return {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": pad("labels", -100)}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            print("step %d loss %.8g" % (state.global_step, float(logs["loss"])), flush=True)


config = BartConfig(
    vocab_size=4000, d_model=144, encoder_layers=3, decoder_layers=3, encoder_attention_heads=6,
    decoder_attention_heads=6, encoder_ffn_dim=576, decoder_ffn_dim=576, dropout=0.0,
    attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=160,
)  # fmt: skip
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(
        out, per_device_train_batch_size=20, gradient_accumulation_steps=2, max_steps=3,
        logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=2,
    )  # fmt: skip
    rows = [pair(i) for i in range(120)]
    model = BartForConditionalGeneration(config)
    Trainer(model, args, train_dataset=rows, data_collator=collate, callbacks=[Show()]).train()
