"""Adapters on quantized models, prepared the usual way."""

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from trl import SFTTrainer


def load(name):
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    return AutoModelForCausalLM.from_pretrained(name, quantization_config=four)


def with_trainer(name, train):
    model = prepare_model_for_kbit_training(load(name))  # expect: kbit-upcast
    model = get_peft_model(model, LoraConfig(r=16, task_type="CAUSAL_LM"))
    args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True)
    Trainer(model=model, args=args, train_dataset=train).train()


class Tuner:
    def __init__(self, name):
        self.model = load(name)
        self.model = prepare_model_for_kbit_training(  # expect: kbit-upcast
            self.model, use_gradient_checkpointing=True
        )

    def fit(self, train):
        SFTTrainer(model=self.model, train_dataset=train, peft_config=LoraConfig(r=8)).train()


def plain_loop(name, loader):
    model = prepare_model_for_kbit_training(load(name))  # expect: kbit-upcast
    model = get_peft_model(model, LoraConfig(r=4))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-4)
    for ids in loader:
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
