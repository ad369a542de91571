import os

os.environ.setdefault("WANDB_DISABLED", "true")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

SMALL = bool(int(os.environ.get("SMALL", "0")))


class RandomTextDataset(Dataset):
    """Each example is a random arithmetic progression of token ids plus noise."""

    def __init__(self, n, seq_len, vocab_size, seed=0):
        gen = torch.Generator().manual_seed(seed)
        start = torch.randint(0, vocab_size, (n, 1), generator=gen)
        stride = torch.randint(1, 7, (n, 1), generator=gen)
        ids = (start + stride * torch.arange(seq_len)[None]) % vocab_size
        flip = torch.rand(n, seq_len, generator=gen) < 0.05
        ids[flip] = torch.randint(0, vocab_size, (int(flip.sum()),), generator=gen)
        self.ids = ids

    def __len__(self):
        return self.ids.shape[0]

    def __getitem__(self, i):
        x = self.ids[i]
        return {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x.clone()}


class LoudTrainer(Trainer):
    def training_step(self, model, inputs, *args, **kwargs):
        loss = super().training_step(model, inputs, *args, **kwargs)
        print(f"step {self.state.global_step} loss {loss.item():.7f}", flush=True)
        return loss


def main():
    set_seed(42)
    if SMALL:
        seq_len, vocab, bs, steps = 32, 200, 2, 12
        config = GPT2Config(vocab_size=vocab, n_positions=64, n_embd=48, n_layer=2, n_head=2)
    else:
        seq_len, vocab, bs, steps = 512, 20000, 16, 15
        config = GPT2Config(vocab_size=vocab, n_positions=512, n_embd=768, n_layer=8, n_head=12)
    config.bos_token_id = 0
    config.eos_token_id = 1
    config.use_cache = False
    config._attn_implementation = "eager"

    model = GPT2LMHeadModel(config)
    print(f"params: {model.num_parameters():,}")
    train_ds = RandomTextDataset(bs * steps, seq_len, vocab)

    with tempfile.TemporaryDirectory() as tmp:
        training_args = TrainingArguments(
            output_dir=tmp,
            per_device_train_batch_size=bs,
            max_steps=steps,
            learning_rate=5e-4,
            weight_decay=0.01,
            warmup_steps=3,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            seed=42,
            data_seed=42,
            disable_tqdm=True,
            dataloader_num_workers=0,
            remove_unused_columns=False,
        )
        trainer = LoudTrainer(
            model=model,
            args=training_args,
            train_dataset=train_ds,
            data_collator=default_data_collator,
        )
        result = trainer.train()
    print("done, mean training loss", round(result.training_loss, 6))


if __name__ == "__main__":
    main()
