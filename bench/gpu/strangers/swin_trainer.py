"""Hugging Face's Trainer with a Swin transformer on pictures: a data collator, evaluation during
training, a label smoother of the Trainer's own."""

# tiny: --embed 8 --batch 4 --size 32 --samples 16
import argparse
import os
import tempfile

import torch
from transformers import (
    SwinConfig,
    SwinForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

p = argparse.ArgumentParser()
p.add_argument("--embed", type=int, default=72)
p.add_argument("--batch", type=int, default=48)
p.add_argument("--size", type=int, default=192)
p.add_argument("--samples", type=int, default=576)
a = p.parse_args()
set_seed(6)
big = a.size >= 128


class Pictures(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        return {"pixel_values": torch.randn(3, a.size, a.size, generator=g), "labels": i % 10}


class Tell(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in (logs or {}):
            print("step %d loss %s" % (state.global_step - 1, logs["loss"]), flush=True)


model = SwinForImageClassification(
    SwinConfig(
        image_size=a.size,
        patch_size=4 if big else 2,
        embed_dim=a.embed,
        depths=[2, 2, 6, 2] if big else [1, 1],
        num_heads=[3, 6, 12, 24] if big else [2, 2],
        window_size=6 if big else 4,
        drop_path_rate=0.0,
        num_labels=10,
    )
)
Trainer(
    model,
    TrainingArguments(
        output_dir=os.environ.get("FIT_OUT") or tempfile.mkdtemp(),
        per_device_train_batch_size=a.batch,
        per_device_eval_batch_size=a.batch,
        num_train_epochs=1,
        learning_rate=1e-4,
        label_smoothing_factor=0.1,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=8,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
    ),
    train_dataset=Pictures(a.samples, 0),
    eval_dataset=Pictures(a.samples // 6, 10000),
    callbacks=[Tell()],
).train()
