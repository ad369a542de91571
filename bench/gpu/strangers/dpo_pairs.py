# Preference tuning: chosen and rejected answers in one batch, a frozen reference model, the
# log-probabilities of the answers summed over their tokens, AdamW.
# tiny: --d 16 --layers 2 --pairs 3 --seq 16 --vocab 80 --device cpu
import argparse
import copy

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

ap = argparse.ArgumentParser()
ap.add_argument("--d", type=int, default=768)
ap.add_argument("--layers", type=int, default=12)
ap.add_argument("--pairs", type=int, default=8)
ap.add_argument("--seq", type=int, default=512)
ap.add_argument("--vocab", type=int, default=16000)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(0)
policy = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=a.vocab,
        hidden_size=a.d,
        intermediate_size=3 * a.d,
        num_hidden_layers=a.layers,
        num_attention_heads=max(1, a.d // 64),
        num_key_value_heads=max(1, a.d // 128),
        max_position_embeddings=a.seq,
        use_cache=False,
    )
).to(a.device)
reference = copy.deepcopy(policy).eval().requires_grad_(False)


def log_probs(model, ids, labels):
    logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
    target = labels[:, 1:].clone()
    keep = target != -100
    target[~keep] = 0
    each = torch.gather(logits.log_softmax(-1), 2, target[..., None])[..., 0]
    return (each * keep).sum(-1)


opt = torch.optim.AdamW(policy.parameters(), lr=5e-6)
rng = torch.Generator().manual_seed(1)
beta = 0.1
policy.train()
for step in range(12):
    prompt = torch.randint(3, a.vocab, (a.pairs, a.seq // 4), generator=rng)
    answers = torch.randint(3, a.vocab, (2, a.pairs, a.seq - a.seq // 4), generator=rng)
    ids = torch.cat([torch.cat([prompt, answers[k]], 1) for k in (0, 1)]).to(a.device)
    labels = ids.clone()
    labels[:, : a.seq // 4] = -100
    lp = log_probs(policy, ids, labels)
    with torch.no_grad():
        ref = log_probs(reference, ids, labels)
    margin = (lp[: a.pairs] - lp[a.pairs :]) - (ref[: a.pairs] - ref[a.pairs :])
    loss = -F.logsigmoid(beta * margin).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
