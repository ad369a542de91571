"""A compiled Llama of three layers: compile-tiny-bf16 of bench/gpu/recipes.py."""

import torch
import transformers

config = transformers.LlamaConfig(
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=8000,
    use_cache=False,
    max_position_embeddings=4096,
)
model = transformers.LlamaForCausalLM(config).to("cuda").to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model.train()
run = torch.compile(model)
for _ in range(4):
    ids = torch.randint(0, config.vocab_size, (4, 256), device="cuda")
    loss = run(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
