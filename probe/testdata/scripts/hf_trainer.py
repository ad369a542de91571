"""Hugging Face Trainer on the CPU: a tiny GPT-2, accumulation, evaluation and a checkpoint. Prints its log exactly."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(7)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=16))
data = [{"input_ids": torch.randint(0, 64, (16,))} for _ in range(48)]
data = [dict(row, labels=row["input_ids"]) for row in data]
arguments = TrainingArguments(output_dir=sys.argv[1], max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                              logging_steps=1, eval_strategy="steps", eval_steps=3, save_steps=3, report_to=[], use_cpu=True,
                              disable_tqdm=True)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:4])
trainer.train()
print("LOSSES", [float(row["loss"]).hex() for row in trainer.state.log_history if "loss" in row])
