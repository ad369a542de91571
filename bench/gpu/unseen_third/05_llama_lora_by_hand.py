"""LoRA without peft: wrap the linears of a frozen bf16 llama, train only A and B."""

import argparse
import math
import os

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

SMALL = "SMALL" in os.environ


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int, alpha: int, dropout: float):
        super().__init__()
        self.base = base
        self.base.weight.requires_grad_(False)
        self.drop = nn.Dropout(dropout)
        kw = dict(device=base.weight.device, dtype=torch.float32)
        self.A = nn.Parameter(torch.empty(r, base.in_features, **kw))
        self.B = nn.Parameter(torch.zeros(base.out_features, r, **kw))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scale = alpha / r

    def forward(self, x):
        h = self.drop(x.to(self.A.dtype)) @ self.A.t() @ self.B.t()
        return self.base(x) + (h * self.scale).to(x.dtype)


def inject(model, names, **kw):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name in names:
                setattr(module, name, LoRALinear(child, **kw))


def batches(n, bs, seq, vocab, device):
    """Instruction tuning: the prompt is masked, its length differs from row to row."""
    g = torch.Generator().manual_seed(8)
    for _ in range(n):
        ids = torch.randint(0, vocab, (bs, seq), generator=g)
        labels = ids.clone()
        for row in labels:
            row[: int(torch.randint(seq // 8, seq // 2, (1,), generator=g))] = -100
        yield ids.to(device), labels.to(device)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rank", type=int, default=16)
    ap.add_argument("--alpha", type=int, default=32)
    ap.add_argument("--steps", type=int, default=16)
    ap.add_argument("--bs", type=int, default=2 if SMALL else 4)
    ap.add_argument("--seq", type=int, default=32 if SMALL else 768)
    args = ap.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=128 if SMALL else 32000,
        hidden_size=64 if SMALL else 1536,
        intermediate_size=128 if SMALL else 4096,
        num_hidden_layers=2 if SMALL else 16,
        num_attention_heads=4 if SMALL else 12,
        num_key_value_heads=2 if SMALL else 4,
        use_cache=False,
        dtype="bfloat16",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.requires_grad_(False)
    names = {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}
    inject(model, names, r=args.rank, alpha=args.alpha, dropout=0.05)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in trainable):,} trainable")
    optimizer = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    model.train()
    stream = batches(args.steps, args.bs, args.seq, config.vocab_size, device)
    for step, (ids, labels) in enumerate(stream):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 0.3)
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
