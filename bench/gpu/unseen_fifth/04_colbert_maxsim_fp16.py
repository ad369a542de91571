"""Late-interaction retrieval (ColBERT): MaxSim against every document of the batch, fp16 scaler."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import BertConfig, BertModel

CUDA = torch.cuda.is_available()


@dataclass
class Args:
    queries: int = 44 if CUDA else 3
    negatives: int = 1
    q_len: int = 32 if CUDA else 6
    d_len: int = 180 if CUDA else 12
    dim: int = 128 if CUDA else 8
    vocab: int = 30522 if CUDA else 120
    steps: int = 11
    lr: float = 5e-5
    temperature: float = 0.05


class ColBERT(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.bert = BertModel(
            BertConfig(
                vocab_size=args.vocab,
                hidden_size=768 if CUDA else 16,
                num_hidden_layers=8 if CUDA else 2,
                num_attention_heads=12 if CUDA else 2,
                intermediate_size=3072 if CUDA else 32,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            ),
            add_pooling_layer=False,
        )
        self.proj = nn.Linear(self.bert.config.hidden_size, args.dim, bias=False)

    def encode(self, ids, keep):
        h = self.bert(input_ids=ids, attention_mask=keep.long()).last_hidden_state
        return F.normalize(self.proj(h).float(), dim=-1) * keep.unsqueeze(-1)

    def forward(self, q_ids, d_ids):
        q_keep, d_keep = q_ids.ne(0), d_ids.ne(0)
        q = self.encode(q_ids, torch.ones_like(q_keep))  # query augmentation: pads are used too
        d = self.encode(d_ids, d_keep)
        sim = torch.einsum("qih,djh->qdij", q, d)
        sim = sim.masked_fill(~d_keep[None, :, None, :], -1e4)
        return sim.amax(-1).mean(-1)


class Pairs:
    def __init__(self, args, seed):
        self.a, self.g = args, torch.Generator().manual_seed(seed)

    def sentence(self, n, longest):
        x = torch.zeros(longest, dtype=torch.long)
        x[:n] = torch.randint(1, self.a.vocab, (n,), generator=self.g)
        return x

    def __iter__(self):
        a = self.a
        for _ in range(a.steps):
            pos, neg, qs = [], [], []
            for _ in range(a.queries):
                n = int(torch.randint(a.d_len // 2, a.d_len + 1, (1,), generator=self.g))
                d = self.sentence(n, a.d_len)
                m = int(torch.randint(3, a.q_len, (1,), generator=self.g))
                q = torch.zeros(a.q_len, dtype=torch.long)
                q[:m] = d[torch.randint(0, n, (m,), generator=self.g)]
                qs.append(q)
                pos.append(d)
                for _ in range(a.negatives):
                    bad = d.clone()
                    bad[:n] = bad[:n].roll(3)
                    bad[: n // 2] = self.sentence(n // 2, n // 2)
                    neg.append(bad)
            yield torch.stack(qs), torch.stack(pos + neg)


def run(args):
    device = "cuda" if CUDA else "cpu"
    torch.manual_seed(44)
    model = ColBERT(args).to(device).train()
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12, enabled=CUDA)
    half = torch.float16 if CUDA else torch.bfloat16
    for i, (q, d) in enumerate(Pairs(args, 4)):
        q, d = q.to(device), d.to(device)
        with torch.autocast(device, dtype=half):
            scores = model(q, d)
        target = torch.arange(len(q), device=device)
        loss = F.cross_entropy(scores.float() / args.temperature, target)
        optim.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optim)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(optim)
        scaler.update()
        rank1 = (scores.argmax(1) == target).float().mean().item()
        print(f"step {i} loss {loss.item():.8f} r@1 {rank1:.3f}", flush=True)


if __name__ == "__main__":
    run(Args())
