"""Translation with a GRU encoder, attention and a decoder that is unrolled in Python, teacher
forcing by the flip of a coin, two optimizers, the model called piece by piece from the loop."""

# tiny: --hidden 12 --batch 5 --length 7 --vocab 40 --device cpu
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--hidden", type=int, default=384)
p.add_argument("--batch", type=int, default=96)
p.add_argument("--length", type=int, default=40)
p.add_argument("--vocab", type=int, default=8000)
p.add_argument("--device", default="cuda")
a = p.parse_args()
random.seed(2)
torch.manual_seed(2)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.hidden)
        self.gru = nn.GRU(a.hidden, a.hidden, batch_first=True)

    def forward(self, x):
        return self.gru(self.emb(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.hidden)
        self.q, self.k, self.v = (
            nn.Linear(a.hidden, a.hidden),
            nn.Linear(a.hidden, a.hidden),
            nn.Linear(a.hidden, 1),
        )
        self.gru = nn.GRU(2 * a.hidden, a.hidden, batch_first=True)
        self.out = nn.Linear(a.hidden, a.vocab)

    def forward(self, token, hidden, memory):
        e = self.emb(token)
        score = self.v(torch.tanh(self.q(hidden.transpose(0, 1)) + self.k(memory)))
        ctx = (score.softmax(1) * memory).sum(1, keepdim=True)
        y, hidden = self.gru(torch.cat([e, ctx], 2), hidden)
        return F.log_softmax(self.out(y), -1), hidden


enc, dec = Encoder().to(a.device), Decoder().to(a.device)
eo, do = torch.optim.Adam(enc.parameters(), 3e-4), torch.optim.Adam(dec.parameters(), 3e-4)
crit = nn.NLLLoss()
rng = torch.Generator().manual_seed(4)
for i in range(12):
    src = torch.randint(2, a.vocab, (a.batch, a.length), generator=rng).to(a.device)
    tgt = src.flip(1)
    memory, hidden = enc(src)
    token = torch.ones(a.batch, 1, dtype=torch.long, device=a.device)
    outs = []
    force = random.random() < 0.5
    for t in range(a.length):
        out, hidden = dec(token, hidden, memory)
        outs.append(out)
        token = tgt[:, t : t + 1] if force else out.argmax(-1).detach()
    loss = crit(torch.cat(outs, 1).view(-1, a.vocab), tgt.reshape(-1))
    eo.zero_grad()
    do.zero_grad()
    loss.backward()
    eo.step()
    do.step()
    print("step %d loss %.9g" % (i, loss.item()), flush=True)
