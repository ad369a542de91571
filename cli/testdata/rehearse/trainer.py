"""Hugging Face Trainer, with workers, mixed precision, logging and checkpoints at every step."""
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.randint(0, 500, (64,))
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=500))
arguments = TrainingArguments(output_dir=sys.argv[1], per_device_train_batch_size=4, max_steps=10, bf16=True, logging_steps=1,
                              save_steps=1, report_to="none", dataloader_num_workers=2, gradient_accumulation_steps=2)
Trainer(model=model, args=arguments, train_dataset=Data()).train()
