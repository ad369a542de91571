"""Preference tuning: log-ratios of a policy and a frozen copy over chosen and rejected answers."""

import copy

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(5)
torch.set_num_threads(1)
config = GPT2Config(
    vocab_size=4096, n_positions=160, n_embd=192, n_layer=6, n_head=6,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
policy = GPT2LMHeadModel(config)
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), 5e-4)


def pairs(n):
    rows, masks = [], []
    for _ in range(2 * n):
        length, prompt = int(torch.randint(80, 150, ())), 30
        ids = torch.randint(1, 4096, (length,))
        rows.append(F.pad(ids, (0, 150 - length)))
        masks.append((torch.arange(150) >= prompt) & (torch.arange(150) < length))
    return torch.stack(rows), torch.stack(masks)


def logps(model, ids, mask):
    attention = (ids != 0).long()
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]
    picked = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return (picked * mask[:, 1:]).sum(1)


for step in range(3):
    ids, mask = pairs(12)
    ours = logps(policy, ids, mask)
    with torch.no_grad():
        theirs = logps(reference, ids, mask)
    ratio = ours - theirs
    chosen, rejected = ratio.chunk(2)
    loss = -F.logsigmoid(0.1 * (chosen - rejected)).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    gain = 0.1 * (chosen - rejected).mean().item()
    print("step %d loss=%.8g margin=%.6g" % (step, loss.item(), gain), flush=True)
