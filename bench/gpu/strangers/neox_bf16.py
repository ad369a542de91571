"""Pre-training of a GPT-NeoX by Hugging Face in bfloat16 autocast, loss from the model, fused
AdamW with two groups, accumulation over two micro-steps."""

# tiny: --d 16 --layers 2 --batch 2 --length 12 --vocab 60 --device cpu
import argparse

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

ap = argparse.ArgumentParser()
ap.add_argument("--d", type=int, default=768)
ap.add_argument("--layers", type=int, default=10)
ap.add_argument("--batch", type=int, default=24)
ap.add_argument("--length", type=int, default=512)
ap.add_argument("--vocab", type=int, default=16000)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(21)
model = GPTNeoXForCausalLM(
    GPTNeoXConfig(
        vocab_size=a.vocab,
        hidden_size=a.d,
        num_hidden_layers=a.layers,
        num_attention_heads=4,
        intermediate_size=4 * a.d,
        max_position_embeddings=a.length,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
).to(a.device)
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=3e-4,
    betas=(0.9, 0.95),
    fused=a.device == "cuda",
)
g = torch.Generator().manual_seed(1)
for step in range(12):
    for micro in range(2):
        ids = torch.randint(0, a.vocab, (a.batch, a.length), generator=g).to(a.device)
        with torch.autocast(a.device, dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
