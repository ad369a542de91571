"""Summarising with BART by Hugging Face in a loop of one's own: label smoothing outside of the
model, gradient clipping, a cosine schedule with warm-up, the longest sample of each batch decides.
"""

# tiny: --d 16 --layers 2 --batch 4 --src 12 --vocab 60 --device cpu
import argparse

import torch
from transformers import BartConfig, BartForConditionalGeneration, get_cosine_schedule_with_warmup

p = argparse.ArgumentParser()
p.add_argument("--d", type=int, default=512)
p.add_argument("--layers", type=int, default=6)
p.add_argument("--batch", type=int, default=24)
p.add_argument("--src", type=int, default=384)
p.add_argument("--vocab", type=int, default=12000)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(0)
model = BartForConditionalGeneration(
    BartConfig(
        vocab_size=a.vocab,
        d_model=a.d,
        encoder_layers=a.layers,
        decoder_layers=a.layers,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=4 * a.d,
        decoder_ffn_dim=4 * a.d,
        max_position_embeddings=a.src + 8,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    )
).to(a.device)
model.train()
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01)
sched = get_cosine_schedule_with_warmup(opt, 3, 14)
g = torch.Generator().manual_seed(5)


def batch():
    lengths = torch.randint(a.src // 2, a.src + 1, (a.batch,), generator=g)
    lengths[0] = a.src
    ids = torch.randint(3, a.vocab, (a.batch, a.src), generator=g)
    mask = (torch.arange(a.src)[None] < lengths[:, None]).long()
    labels = torch.randint(3, a.vocab, (a.batch, a.src // 2), generator=g)
    labels[:, -2:] = -100
    return {
        "input_ids": (ids * mask + (1 - mask)).to(a.device),
        "attention_mask": mask.to(a.device),
        "labels": labels.to(a.device),
    }


for step in range(12):
    b = batch()
    out = model(**b)
    loss = torch.nn.functional.cross_entropy(
        out.logits.view(-1, a.vocab), b["labels"].view(-1), ignore_index=-100, label_smoothing=0.1
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
