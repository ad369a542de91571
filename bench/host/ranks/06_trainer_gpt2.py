"""Hugging Face's Trainer under torchrun on two CPU ranks."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)


class Text(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        ids = torch.randint(0, 2000, (96,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and "loss" in logs:
            print("loss %.8g" % float(logs["loss"]), flush=True)


config = GPT2Config(
    vocab_size=2000,
    n_positions=96,
    n_embd=128,
    n_layer=5,
    n_head=4,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)
torch.manual_seed(6)
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(
        out,
        per_device_train_batch_size=32,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        seed=6,
        learning_rate=1e-3,
    )
    Trainer(GPT2LMHeadModel(config), args, train_dataset=Text(), callbacks=[Print()]).train()
