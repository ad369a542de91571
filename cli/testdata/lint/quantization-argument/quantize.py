"""Options that are not there."""
import torch
from transformers import BitsAndBytesConfig

a = BitsAndBytesConfig(load_in_8bit=True, bnb_8bit_compute_dtype=torch.float16)  # expect: quantization-argument
b = BitsAndBytesConfig(load_in_4bit=True, load_in_8bit=True)  # expect: quantization-argument
c = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="int4")  # expect: quantization-argument
d = BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.bfloat16)  # expect: quantization-argument
e = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
