"""KTO preference tuning (good/bad flags, no pairs) of a small Mistral with peft LoRA in bf16.

The reference model is the same network with its adapters switched off.
"""

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralForCausalLM

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
BATCH = 16 if CUDA else 4
MAX_LEN = 384 if CUDA else 24
VOCAB = 16000 if CUDA else 90
STEPS = 10 if CUDA else 3
BETA, W_GOOD, W_BAD = 0.1, 1.0, 1.33


def build():
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=1024 if CUDA else 32,
        intermediate_size=2816 if CUDA else 64,
        num_hidden_layers=8 if CUDA else 2,
        num_attention_heads=16 if CUDA else 4,
        num_key_value_heads=4 if CUDA else 2,
        max_position_embeddings=1024,
        sliding_window=None,
        use_cache=False,
    )
    base = MistralForCausalLM(config).to(device, dtype=torch.bfloat16 if CUDA else torch.float32)
    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora)
    model.print_trainable_parameters()
    return model


def make_batch(gen):
    prompt = torch.randint(MAX_LEN // 6, MAX_LEN // 3, (BATCH,), generator=gen)
    total = torch.randint(MAX_LEN // 2, MAX_LEN + 1, (BATCH,), generator=gen)
    width = int(total.max())
    pos = torch.arange(width)[None]
    ids = torch.randint(3, VOCAB, (BATCH, width), generator=gen)
    good = torch.rand(BATCH, generator=gen) < 0.5
    ids = torch.where(good[:, None], ids, ids // 2 + 2)  # the bad ones use low ids
    mask = pos < total[:, None]
    answer = mask & (pos >= prompt[:, None])
    return [t.to(device) for t in (ids * mask, mask.long(), answer, good)]


def sequence_logp(model, ids, mask, answer):
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
    logp = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None]).squeeze(2)
    return (logp * answer[:, 1:]).sum(1)


def main():
    torch.manual_seed(161)
    model = build()
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=5e-4, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=STEPS)
    gen = torch.Generator().manual_seed(16)
    for step in range(STEPS):
        ids, mask, answer, good = make_batch(gen)
        with torch.no_grad():
            with model.disable_adapter():
                ref = sequence_logp(model, ids, mask, answer)
            # the KL baseline comes from prompts with the answer of somebody else
            swapped = torch.where(answer, ids.roll(1, 0), ids)
            kl = sequence_logp(model, swapped, mask, answer)
            with model.disable_adapter():
                kl = kl - sequence_logp(model, swapped, mask, answer)
            z0 = kl.mean().clamp(min=0)
        reward = sequence_logp(model, ids, mask, answer) - ref
        good_loss = W_GOOD * (1 - F.sigmoid(BETA * (reward - z0)))
        bad_loss = W_BAD * (1 - F.sigmoid(BETA * (z0 - reward)))
        loss = torch.where(good, good_loss, bad_loss).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.6f} reward {reward.mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
