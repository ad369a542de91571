"""Options that exist, each with what switches it on."""

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig


def four_bits(name):
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return AutoModelForCausalLM.from_pretrained(name, quantization_config=config)


class Loader:
    def __init__(self, threshold):
        self.config = BitsAndBytesConfig(
            load_in_8bit=True,
            llm_int8_threshold=threshold,
            llm_int8_skip_modules=["lm_head"],
        )

    def load(self, name):
        return AutoModelForCausalLM.from_pretrained(name, quantization_config=self.config)


def by_arguments(name, bits, **options):
    config = BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8, **options)
    return AutoModelForCausalLM.from_pretrained(name, quantization_config=config)


def another_library(name):
    config = QuantoConfig(weights="int4")
    return AutoModelForCausalLM.from_pretrained(name, quantization_config=config)
