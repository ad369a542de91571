"""GRPO on a small Llama with LoRA: sampled groups, a rule as reward, KL to the frozen base."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCAB, DIM, LAYERS, HEADS, INTER = 8192, 768, 12, 12, 2048
PROMPTS, GROUP, PROMPT_LEN, NEW, ROLLOUTS, INNER = 12, 8, 32, 64, 5, 2
if device == "cpu":
    VOCAB, DIM, LAYERS, HEADS, INTER = 128, 32, 2, 2, 64
    PROMPTS, GROUP, PROMPT_LEN, NEW, ROLLOUTS, INNER = 2, 4, 6, 8, 4, 2
PAD, EOS = 0, 1
CLIP, BETA = 0.2, 0.04


def build_policy():
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=DIM,
            intermediate_size=INTER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            max_position_embeddings=512,
            pad_token_id=PAD,
            bos_token_id=2,
            eos_token_id=EOS,
        )
    )
    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base, lora).to(device)


def reward_fn(completions, mask):
    """The share of even tokens, with a small bonus for stopping early."""
    even = ((completions % 2 == 0) & mask).sum(-1) / mask.sum(-1).clamp(min=1)
    return even + 0.1 * (1 - mask.float().mean(-1))


def completion_mask(completions):
    ended = (completions == EOS).cumsum(-1)
    return (ended == 0) | ((ended == 1) & (completions == EOS))


def token_logprobs(model, ids, attention):
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        logits = model(input_ids=ids, attention_mask=attention).logits
    logits = logits[:, PROMPT_LEN - 1 : -1].float()
    target = ids[:, PROMPT_LEN:]
    picked = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return picked - logits.logsumexp(-1)


@torch.no_grad()
def rollout(model):
    model.eval()
    prompts = torch.randint(3, VOCAB, (PROMPTS, PROMPT_LEN), device=device)
    prompts = prompts.repeat_interleave(GROUP, 0)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        ids = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=NEW,
            min_new_tokens=NEW // 4,
            do_sample=True,
            top_k=0,
            temperature=1.0,
            pad_token_id=PAD,
        )
    mask = completion_mask(ids[:, PROMPT_LEN:])
    attention = torch.cat([torch.ones_like(prompts), mask.long()], dim=1)
    rewards = reward_fn(ids[:, PROMPT_LEN:], mask)
    grouped = rewards.view(PROMPTS, GROUP)
    centred = grouped - grouped.mean(1, keepdim=True)
    advantages = (centred / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    old = token_logprobs(model, ids, attention)
    with model.disable_adapter():
        reference = token_logprobs(model, ids, attention)
    return ids, attention, mask, advantages, old, reference, rewards.mean().item()


def grpo_loss(logp, old, reference, advantages, mask):
    ratio = torch.exp(logp - old)
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    gap = reference - logp
    kl = torch.exp(gap) - gap - 1
    per_token = -(surrogate - BETA * kl)
    return ((per_token * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def main():
    model = build_policy()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3, weight_decay=0.0)
    step = 0
    for _ in range(ROLLOUTS):
        ids, attention, mask, advantages, old, reference, reward = rollout(model)
        model.train()
        for _ in range(INNER):
            logp = token_logprobs(model, ids, attention)
            loss = grpo_loss(logp, old, reference, advantages, mask)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            print(f"step {step} loss {loss.item():.6f} reward {reward:.4f}", flush=True)
            step += 1


if __name__ == "__main__":
    main()
