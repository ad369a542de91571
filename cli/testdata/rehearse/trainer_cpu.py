import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=10, n_positions=8)
rows = [{"input_ids": torch.ones(4).long(), "labels": torch.ones(4).long()} for _ in range(8)]
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=2,
    max_steps=2,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows).train()
