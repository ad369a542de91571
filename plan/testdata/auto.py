"""Prints where accelerate's device_map="auto" puts the blocks of a model: [[preset, gigabytes of each card, blocks on each], ...]."""
import json

import torch
from accelerate import infer_auto_device_map, init_empty_weights
from accelerate.utils import get_balanced_memory
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

LLAMA = dict(num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
MODELS = {
    "gpt2": GPT2Config(),
    "llama-3.2-1b": LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, tie_word_embeddings=True, **LLAMA),
    "llama-3-8b": LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, tie_word_embeddings=False, **LLAMA),
}
answers = []
for name, config in MODELS.items():
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.tie_weights()
    whole = list(model._no_split_modules)
    for sizes in ([24, 24], [24, 24, 12], [40, 16], [24, 24, 24, 24]):
        memory = get_balanced_memory(model, max_memory={i: s << 30 for i, s in enumerate(sizes)}, no_split_module_classes=whole, dtype=torch.bfloat16)
        placed = infer_auto_device_map(model, max_memory=memory, no_split_module_classes=whole, dtype=torch.bfloat16)
        blocks = [0] * len(sizes)
        for module, device in placed.items():
            blocks[int(device)] += ".layers." in module or ".h." in module
        answers.append([name, sizes, blocks])
print(json.dumps(answers))
