"""A model whose weights alone would take 32 GB of host memory, built on the CPU and moved, as scripts do."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=12288, intermediate_size=49152, num_hidden_layers=3, num_attention_heads=96, vocab_size=32000, use_cache=False)
model = LlamaForCausalLM(config).to("cuda")
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    ids = torch.randint(0, 32000, (1, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
