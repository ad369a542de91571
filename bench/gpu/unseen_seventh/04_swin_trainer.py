"""Fine-grained image classification: Swin Transformer with the HF Trainer (examples style)."""

import tempfile
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import (
    SwinConfig,
    SwinForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback

CUDA = torch.cuda.is_available()


@dataclass
class ModelArguments:
    image_size: int = field(default=224 if CUDA else 32)
    patch_size: int = field(default=4 if CUDA else 2)
    embed_dim: int = field(default=96 if CUDA else 16)
    window_size: int = field(default=7 if CUDA else 4)
    num_labels: int = field(default=200 if CUDA else 10)


@dataclass
class DataArguments:
    train_size: int = field(default=480 if CUDA else 8)
    eval_size: int = field(default=48 if CUDA else 4)
    batch_size: int = field(default=48 if CUDA else 2)


class BirdPhotos(Dataset):
    def __init__(self, n, size, labels, seed):
        self.n, self.size, self.labels, self.seed = n, size, labels, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        label = int(torch.randint(0, self.labels, (1,), generator=g))
        img = torch.randn(3, self.size, self.size, generator=g)
        img[label % 3] += label / self.labels
        return {"pixel_values": img, "label": label}


def collate_fn(examples):
    return {
        "pixel_values": torch.stack([e["pixel_values"] for e in examples]),
        "labels": torch.tensor([e["label"] for e in examples]),
    }


def compute_metrics(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


class EvalPrinter(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "eval_accuracy" in logs:
            print("eval accuracy", logs["eval_accuracy"])


class VerboseTrainer(Trainer):
    """The default log rounds to four digits; we want to compare runs."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step + 1} loss {loss.item():.8f}", flush=True)
        return loss


def main():
    margs, dargs = ModelArguments(), DataArguments()
    set_seed(42)
    config = SwinConfig(
        image_size=margs.image_size,
        patch_size=margs.patch_size,
        embed_dim=margs.embed_dim,
        depths=[2, 2, 6, 2] if CUDA else [1, 1],
        num_heads=[3, 6, 12, 24] if CUDA else [2, 4],
        window_size=margs.window_size,
        num_labels=margs.num_labels,
        drop_path_rate=0.0,
    )
    model = SwinForImageClassification(config)
    train = BirdPhotos(dargs.train_size, margs.image_size, margs.num_labels, 1)
    evals = BirdPhotos(dargs.eval_size, margs.image_size, margs.num_labels, 2)

    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=dargs.batch_size,
            per_device_eval_batch_size=dargs.batch_size,
            num_train_epochs=1,
            learning_rate=2e-4,
            weight_decay=0.05,
            lr_scheduler_type="cosine",
            warmup_steps=2,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=1,
            remove_unused_columns=False,
            dataloader_num_workers=4 if CUDA else 0,
            disable_tqdm=True,
            report_to=[],
            seed=42,
            use_cpu=not CUDA,
        )
        trainer = VerboseTrainer(
            model=model,
            args=targs,
            train_dataset=train,
            eval_dataset=evals,
            data_collator=collate_fn,
            compute_metrics=compute_metrics,
            callbacks=[EvalPrinter()],
        )
        trainer.remove_callback(PrinterCallback)
        result = trainer.train()
        print("done", result.global_step, "steps")


if __name__ == "__main__":
    main()
