import os

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import Qwen2Config, Qwen2ForCausalLM

# Reward-weighted fine-tuning: every token has its own weight (advantage), some are negative,
# normalised by the sum of absolute weights of the batch. fp16 with loss scaling as on our V100s.

small = os.environ.get("SMALL") == "1"
dev = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(777)
B, T, V = (2, 24, 150) if small else (6, 512, 60000)

cfg = Qwen2Config(
    vocab_size=V,
    hidden_size=32 if small else 896,
    intermediate_size=64 if small else 2432,
    num_hidden_layers=2 if small else 12,
    num_attention_heads=4 if small else 14,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    use_cache=False,
)
net = Qwen2ForCausalLM(cfg).to(dev)
opt = torch.optim.AdamW(net.parameters(), lr=5e-5, betas=(0.9, 0.99), weight_decay=0.05)
scaler = torch.amp.GradScaler(dev.type, init_scale=2.0**12, enabled=dev.type == "cuda")


def rows():
    g = torch.Generator().manual_seed(1)
    for _ in range(B * 18):
        n = int(torch.randint(T // 2, T + 1, (1,), generator=g))
        ids = torch.zeros(T, dtype=torch.long)
        ids[:n] = torch.randint(1, V, (n,), generator=g)
        w = torch.zeros(T)
        w[:n] = torch.randn(n, generator=g) * 0.5 + 0.8
        w[: n // 4] = 0  # the prompt
        yield ids, (torch.arange(T) < n).long(), w


def token_loss(logits, ids, weights):
    lp = F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
    )
    w = weights[:, 1:].flatten()
    return (lp * w).sum() / w.abs().sum().clamp(min=1.0)


for step, (ids, mask, w) in enumerate(DataLoader(list(rows()), batch_size=B)):
    ids, mask, w = ids.to(dev), mask.to(dev), w.to(dev)
    with torch.autocast(dev.type, dtype=torch.float16 if dev.type == "cuda" else torch.bfloat16):
        logits = net(input_ids=ids, attention_mask=mask).logits
    loss = token_loss(logits, ids, w)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    print(f"step {step} loss {loss.item():.8f}", flush=True)
