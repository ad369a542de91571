# Hugging Face's GPT-2 in a plain loop, compiled in place, the loss computed by the model, a
# learning rate schedule of transformers.
# tiny: --d 16 --layers 2 --batch 4 --seq 16 --device cpu
import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

ap = argparse.ArgumentParser()
ap.add_argument("--d", type=int, default=768)
ap.add_argument("--layers", type=int, default=8)
ap.add_argument("--batch", type=int, default=16)
ap.add_argument("--seq", type=int, default=384)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(0)
vocab = 20000 if a.d > 64 else 100
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=vocab,
        n_embd=a.d,
        n_layer=a.layers,
        n_head=max(1, a.d // 64),
        n_positions=a.seq,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
).to(a.device)
model.train()
model.compile()
opt = torch.optim.AdamW(model.parameters(), 2e-4)
sched = get_linear_schedule_with_warmup(opt, 4, 40)
rng = torch.Generator().manual_seed(3)
for i in range(20):
    ids = torch.randint(0, vocab, (a.batch, a.seq), generator=rng).to(a.device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad()
    print("step %d loss %.9g" % (i, loss.item()), flush=True)
