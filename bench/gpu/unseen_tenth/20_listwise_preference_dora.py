"""Listwise preference tuning (Plackett-Luce over K ranked answers) of a Gemma model with DoRA."""

import math

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import GemmaConfig, GemmaForCausalLM, get_cosine_schedule_with_warmup, set_seed

set_seed(4321)
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

PROMPTS, ANSWERS, BETA, SFT_WEIGHT = (4, 4, 0.1, 0.05) if CUDA else (2, 3, 0.1, 0.05)
PROMPT_LEN, ANSWER_LEN = (128, 256) if CUDA else (8, 12)
VOCAB, ACCUM, UPDATES = (16000, 2, 10) if CUDA else (200, 2, 6)

config = GemmaConfig(
    vocab_size=VOCAB,
    hidden_size=768 if CUDA else 32,
    intermediate_size=3072 if CUDA else 64,
    num_hidden_layers=12 if CUDA else 2,
    num_attention_heads=12 if CUDA else 4,
    num_key_value_heads=4 if CUDA else 2,
    head_dim=64 if CUDA else 8,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)


class RankedAnswers(Dataset):
    """K answers to a prompt, best first: the better the answer, the more of the prompt it keeps."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(PROMPT_LEN // 2, PROMPT_LEN, (1,), generator=g))
        prompt = torch.randint(3, VOCAB, (n,), generator=g)
        rows, starts = [], []
        for rank in range(ANSWERS):
            m = int(torch.randint(ANSWER_LEN // 2, ANSWER_LEN, (1,), generator=g))
            copied = prompt[torch.randint(0, n, (m,), generator=g)]
            random = torch.randint(3, VOCAB, (m,), generator=g)
            keep = torch.rand(m, generator=g) < 1 - rank / ANSWERS
            answer = torch.where(keep, copied, random)
            rows.append(torch.cat([torch.tensor([1]), prompt, answer, torch.tensor([2])]))
            starts.append(n + 1)
        return rows, starts


def collate(items):
    rows = [row for rows, _ in items for row in rows]
    starts = torch.tensor([s for _, starts in items for s in starts])
    ids = pad_sequence(rows, batch_first=True, padding_value=0)
    mask = (ids != 0).long()
    at = torch.arange(ids.shape[1])[None]
    answer = (at >= starts[:, None]) & (mask == 1)
    return ids, mask, answer


def answer_logps(model, ids, mask, answer):
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=CUDA):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    logp = torch.log_softmax(logits.float(), -1)
    token = logp.gather(2, ids[:, 1:, None]).squeeze(2) * answer[:, 1:]
    return token.sum(1), token.sum(1) / answer[:, 1:].sum(1)


def plackett_luce(rewards):
    """Minus the log likelihood of the given order; rewards (prompts, K), best first."""
    tail = torch.flip(torch.logcumsumexp(torch.flip(rewards, [1]), 1), [1])
    return (tail - rewards).sum(1).mean()


def build():
    base = GemmaForCausalLM(config)
    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        use_dora=True,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora).to(DEVICE)
    model.print_trainable_parameters()
    return model


def main():
    model = build()
    model.train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.0)
    sched = get_cosine_schedule_with_warmup(opt, 2, UPDATES)
    loader = DataLoader(
        RankedAnswers(PROMPTS * ACCUM * UPDATES),
        batch_size=PROMPTS,
        shuffle=True,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(0),
    )
    running, agree = 0.0, 0.0
    for i, batch in enumerate(loader):
        ids, mask, answer = (t.to(DEVICE) for t in batch)
        # the reference is the same network with its adapters switched off
        with torch.no_grad(), model.disable_adapter():
            reference, _ = answer_logps(model, ids, mask, answer)
        policy, per_token = answer_logps(model, ids, mask, answer)
        rewards = BETA * (policy - reference).view(-1, ANSWERS)
        best = per_token.view(-1, ANSWERS)[:, 0]
        loss = plackett_luce(rewards) - SFT_WEIGHT * best.mean()
        (loss / ACCUM).backward()
        running += loss.item() / ACCUM
        agree += (rewards.argmax(1) == 0).float().mean().item() / ACCUM
        if (i + 1) % ACCUM == 0:
            norm = torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
            step = (i + 1) // ACCUM - 1
            print(
                f"step {step} loss {running:.6f} best-first {agree:.2f} grad {norm.item():.3f}",
                flush=True,
            )
            running, agree = 0.0, 0.0
    print(f"uniform order would cost {math.lgamma(ANSWERS + 1):.4f}")


if __name__ == "__main__":
    main()
