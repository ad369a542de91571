"""Speech recognition by CTC with wav2vec 2.0 and the Trainer: raw audio of different lengths, the
feature extractor frozen, spec augmentation off.
"""

# tiny: --d 16 --layers 2 --seconds 0.5 --batch 3
import argparse
import os

import torch
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    set_seed,
)

p = argparse.ArgumentParser()
p.add_argument("--d", type=int, default=512)
p.add_argument("--layers", type=int, default=8)
p.add_argument("--seconds", type=float, default=12.0)
p.add_argument("--batch", type=int, default=24)
a = p.parse_args()
RATE = 16000


class Speech(torch.utils.data.Dataset):
    def __len__(self):
        return 15 * a.batch

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(RATE * a.seconds * (0.6 + 0.4 * float(torch.rand(1, generator=g))))
        return torch.randn(n, generator=g), torch.randint(1, 32, (max(2, n // 4000),), generator=g)


def pad(items):
    n, m = max(len(x) for x, _ in items), max(len(y) for _, y in items)
    x, mask = torch.zeros(len(items), n), torch.zeros(len(items), n, dtype=torch.long)
    y = torch.full((len(items), m), -100)
    for i, (wave, text) in enumerate(items):
        x[i, : len(wave)], mask[i, : len(wave)], y[i, : len(text)] = wave, 1, text
    return {"input_values": x, "attention_mask": mask, "labels": y}


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step - 1} loss {logs['loss']}", flush=True)


set_seed(0)
model = Wav2Vec2ForCTC(
    Wav2Vec2Config(
        vocab_size=32,
        hidden_size=a.d,
        num_hidden_layers=a.layers,
        num_attention_heads=max(1, a.d // 64),
        intermediate_size=4 * a.d,
        conv_dim=(128,) * 7 if a.d > 64 else (8,) * 7,
        num_conv_pos_embedding_groups=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
        pad_token_id=0,
    )
)
model.freeze_feature_encoder()
Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=os.environ.get("FIT_OUT", "ctc-out"),
        per_device_train_batch_size=a.batch,
        max_steps=12,
        learning_rate=1e-4,
        warmup_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        disable_tqdm=True,
    ),
    train_dataset=Speech(),
    data_collator=pad,
    callbacks=[Print()],
).train()
