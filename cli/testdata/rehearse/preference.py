"""Steps of preference and reinforcement training on a small Llama, in the order TRL has them.

python preference.py dpo|orpo|kto|reward|grpo bf16|amp
"""

import json
import sys

import torch
import transformers

METHOD, PRECISION, CONFIG = sys.argv[1:4]
BATCH, SEQ, COMPLETION, STEPS = 4, 384, 192, 3
PAIRED = METHOD in ("dpo", "orpo", "reward")

with open(CONFIG) as file:
    VALUES = json.load(file)
config = transformers.LlamaConfig(**{**VALUES, "num_labels": 1, "use_cache": False})
kind = (
    transformers.LlamaForSequenceClassification
    if METHOD == "reward"
    else transformers.LlamaForCausalLM
)
half = torch.bfloat16 if PRECISION == "bf16" else torch.float32
policy = kind(config).to(half).cuda()
reference = kind(config).to(half).cuda().eval() if METHOD in ("dpo", "kto") else None
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)


def answer(model, ids, mask, keep=0):
    """Logits, in fp32 where autocast made them, as accelerate's wrapper does."""
    with torch.autocast("cuda", torch.bfloat16, enabled=PRECISION == "amp"):
        extra = {"logits_to_keep": keep + 1} if keep else {}
        out = model(input_ids=ids, attention_mask=mask, **extra).logits
    return out.float() if PRECISION == "amp" else out


def token_logps(logits, labels):
    if logits.dtype == torch.float32:
        picked = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return picked - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    rows = []
    for row, label in zip(logits, labels):
        logp = torch.nn.functional.log_softmax(row, dim=-1)
        rows.append(logp.gather(-1, label.unsqueeze(-1)).squeeze(-1))
    return torch.stack(rows)


def logps(model, ids, mask):
    logits = answer(model, ids, mask)
    sums = token_logps(logits, torch.roll(ids, -1, 1)).sum(-1)
    return sums, logits


def orpo(ids, mask):
    sums, logits = logps(policy, ids, mask)
    chosen = logits[: len(ids) // 2, :-1].contiguous()
    labels = ids[: len(ids) // 2, 1:].contiguous()
    loss = torch.nn.functional.cross_entropy(chosen.view(-1, chosen.shape[-1]), labels.view(-1))
    return loss - sums.mean()


def grpo(ids, mask):
    logits = answer(policy, ids, mask, COMPLETION)[:, :-1] / 0.9
    kept = token_logps(logits, ids[:, -COMPLETION:])
    return -torch.exp(kept - kept.detach()).mean()


def compared(ids, mask):
    """DPO and KTO: the reference is asked while the policy's activations are there."""
    if METHOD == "kto":
        with torch.no_grad():
            logps(policy, ids, mask)
    sums = logps(policy, ids, mask)[0]
    with torch.no_grad():
        there = logps(reference, ids, mask)[0]
        if METHOD == "kto":
            logps(reference, ids, mask)
    return -torch.nn.functional.logsigmoid(0.1 * (sums - there)).mean()


for _ in range(STEPS):
    count = 2 * BATCH if PAIRED else BATCH
    ids = torch.randint(0, VALUES["vocab_size"], (count, SEQ)).cuda()
    mask = torch.ones_like(ids)
    mask[:, :5] = 0
    if METHOD == "reward":
        scores = answer(policy, ids, mask)
        loss = -torch.nn.functional.logsigmoid(scores[:BATCH] - scores[BATCH:]).mean()
    elif METHOD == "orpo":
        loss = orpo(ids, mask)
    elif METHOD == "grpo":
        loss = grpo(ids, mask)
    else:
        loss = compared(ids, mask)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
