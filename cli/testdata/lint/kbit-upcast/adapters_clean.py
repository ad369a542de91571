"""Adapters without the upcast: frozen by hand, by PEFT, and on a model in bfloat16."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTTrainer


def frozen_by_hand(name):
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=four)
    model.requires_grad_(False)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    return get_peft_model(model, LoraConfig(r=16, task_type="CAUSAL_LM"))


class Tuner:
    def __init__(self, name):
        eight = BitsAndBytesConfig(load_in_8bit=True)
        self.model = AutoModelForCausalLM.from_pretrained(name, quantization_config=eight)

    def fit(self, train):
        SFTTrainer(model=self.model, train_dataset=train, peft_config=LoraConfig(r=8)).train()


def not_quantized(name, loader):
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16)
    model = get_peft_model(model, LoraConfig(r=4))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-4)
    for ids in loader:
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
