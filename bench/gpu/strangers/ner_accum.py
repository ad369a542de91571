# Token classification with transformers in a plain loop: bf16 autocast, four micro-steps for each
# step of the optimizer, padded batches, no decay for biases.
# tiny: --d 32 --layers 2 --batch 2 --seq 24 --device cpu
import argparse

import torch
from transformers import BertConfig, BertForTokenClassification, get_cosine_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--d", type=int, default=768)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--seq", type=int, default=384)
parser.add_argument("--device", default="cuda")
a = parser.parse_args()
torch.manual_seed(5)
model = BertForTokenClassification(
    BertConfig(
        hidden_size=a.d,
        num_hidden_layers=a.layers,
        num_attention_heads=max(1, a.d // 64),
        intermediate_size=4 * a.d,
        vocab_size=3000,
        max_position_embeddings=a.seq,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=9,
    )
).to(a.device)
plain = [p for n, p in model.named_parameters() if "bias" in n or "LayerNorm" in n]
rest = [p for n, p in model.named_parameters() if not ("bias" in n or "LayerNorm" in n)]
optimizer = torch.optim.AdamW(
    [{"params": rest, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=3e-5
)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 20)
gen = torch.Generator().manual_seed(8)
model.train()
for step in range(8):
    total = 0.0
    for _ in range(4):
        lengths = torch.randint(a.seq // 2, a.seq + 1, (a.batch,), generator=gen)
        mask = (torch.arange(a.seq)[None] < lengths[:, None]).long()
        ids = torch.randint(5, 3000, (a.batch, a.seq), generator=gen) * mask
        labels = torch.where(mask.bool(), torch.randint(0, 9, ids.shape, generator=gen), -100)
        with torch.autocast(a.device, torch.bfloat16):
            out = model(
                input_ids=ids.to(a.device),
                attention_mask=mask.to(a.device),
                labels=labels.to(a.device),
            )
            loss = out.loss / 4
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print("step %d loss %.9g" % (step, total), flush=True)
