"""Toy machine translation: nn.Transformer, bucketed lengths, Noam schedule, label smoothing."""

import math
import os
import random

import torch
from torch import nn

PAD, BOS, EOS = 0, 1, 2
tiny = os.getenv("TINY") == "1"
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

SRC_VOCAB = TGT_VOCAB = 60 if tiny else 12000
D_MODEL = 16 if tiny else 512
NHEAD = 2 if tiny else 8
FFN = 32 if tiny else 2048
LAYERS = 1 if tiny else 6
TOKENS_PER_BATCH = 64 if tiny else 9000
MAX_LEN = 12 if tiny else 180
STEPS = 26


class PositionalEncoding(nn.Module):
    def __init__(self, d, dropout, maxlen=512):
        super().__init__()
        den = torch.exp(-torch.arange(0, d, 2) * math.log(10000) / d)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pe = torch.zeros((maxlen, d))
        pe[:, 0::2] = torch.sin(pos * den)
        pe[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(SRC_VOCAB, D_MODEL, padding_idx=PAD)  # shared source/target
        self.pos = PositionalEncoding(D_MODEL, 0.1)
        self.transformer = nn.Transformer(
            D_MODEL, NHEAD, LAYERS, LAYERS, FFN, dropout=0.1, batch_first=True
        )
        self.generator = nn.Linear(D_MODEL, TGT_VOCAB)
        self.generator.weight = self.emb.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt):
        causal = nn.Transformer.generate_square_subsequent_mask(
            tgt.size(1), device=tgt.device
        ).isinf()
        sp, tp = src == PAD, tgt == PAD
        scale = math.sqrt(D_MODEL)
        out = self.transformer(
            self.pos(self.emb(src) * scale),
            self.pos(self.emb(tgt) * scale),
            tgt_mask=causal,
            src_key_padding_mask=sp,
            tgt_key_padding_mask=tp,
            memory_key_padding_mask=sp,
        )
        return self.generator(out)


def random_sentence(length):
    return [BOS] + [random.randrange(3, SRC_VOCAB) for _ in range(length)] + [EOS]


def bucket_batches(steps):
    """Token budget: short sentences -> many rows, long ones -> few."""
    for _ in range(steps):
        center = random.randint(MAX_LEN // 4, MAX_LEN)
        rows = max(1, TOKENS_PER_BATCH // (center + 2))
        pairs = []
        for _ in range(rows):
            n = max(2, center - random.randint(0, 5))
            s = random_sentence(n)
            pairs.append((s, [BOS] + s[1:-1][::-1] + [EOS]))
        ls = max(len(s) for s, _ in pairs)
        lt = max(len(t) for _, t in pairs)
        src = torch.full((rows, ls), PAD)
        tgt = torch.full((rows, lt), PAD)
        for r, (s, t) in enumerate(pairs):
            src[r, : len(s)] = torch.tensor(s)
            tgt[r, : len(t)] = torch.tensor(t)
        yield src, tgt


def noam(step, warmup=8):
    step = max(step, 1)
    return D_MODEL**-0.5 * min(step**-0.5, step * warmup**-1.5)


def train():
    random.seed(11)
    torch.manual_seed(11)
    model = Seq2Seq().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, noam)
    loss_fn = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    model.train()
    for step, (src, tgt) in enumerate(bucket_batches(STEPS)):
        src, tgt = src.to(device), tgt.to(device)
        tgt_in, tgt_out = tgt[:, :-1], tgt[:, 1:]
        logits = model(src, tgt_in)
        loss = loss_fn(logits.reshape(-1, TGT_VOCAB), tgt_out.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print("step %d loss %.9f" % (step, loss.item()), flush=True)


if __name__ == "__main__":
    train()
