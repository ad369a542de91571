# Word-level language model, truncated backprop through time, hidden state carried between chunks.
import math
import os

import torch
import torch.nn as nn

TINY = os.environ.get("TINY") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

ntokens = 80 if TINY else 10000
emsize = nhid = 24 if TINY else 1024
nlayers = 3
bsz = 2 if TINY else 80
bptt = 8 if TINY else 128
nchunks = 25
clip = 0.25
lr = 5.0

torch.manual_seed(1111)


class LockedDropout(nn.Module):
    def forward(self, x, p=0.4):
        if not self.training:
            return x
        m = x.new_empty(1, x.size(1), x.size(2)).bernoulli_(1 - p) / (1 - p)
        return x * m


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = LockedDropout()
        self.encoder = nn.Embedding(ntokens, emsize)
        self.rnns = nn.ModuleList([nn.LSTM(emsize, nhid) for _ in range(nlayers)])
        self.decoder = nn.Linear(nhid, ntokens)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, inp, hidden):
        x = self.drop(self.encoder(inp))
        new_hidden, raw = [], None
        for rnn, h in zip(self.rnns, hidden):
            x, h = rnn(x, h)
            raw = x
            x = self.drop(x)
            new_hidden.append(h)
        return self.decoder(x), new_hidden, raw, x

    def init_hidden(self, b):
        w = next(self.parameters())
        return [(w.new_zeros(1, b, nhid), w.new_zeros(1, b, nhid)) for _ in range(nlayers)]


def repackage_hidden(h):
    """Cut the history of the hidden states."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return type(h)(repackage_hidden(v) for v in h)


def batchify(data):
    n = data.size(0) // bsz
    return data[: n * bsz].view(bsz, -1).t().contiguous()


corpus = batchify(torch.randint(0, ntokens, ((bptt * nchunks + 1) * bsz,)))
model = RNNModel().to(device)
criterion = nn.CrossEntropyLoss()

model.train()
hidden = model.init_hidden(bsz)
total = 0.0
for step, i in enumerate(range(0, corpus.size(0) - 1, bptt)):
    seq_len = min(bptt, corpus.size(0) - 1 - i)
    data = corpus[i : i + seq_len].to(device)
    target = corpus[i + 1 : i + 1 + seq_len].reshape(-1).to(device)
    hidden = repackage_hidden(hidden)
    model.zero_grad()
    output, hidden, raw, dropped = model(data, hidden)
    loss = criterion(output.view(-1, ntokens), target)
    # AR and TAR regularisation as in AWD-LSTM
    reg = 2.0 * dropped.pow(2).mean() + (raw[1:] - raw[:-1]).pow(2).mean()
    (loss + reg).backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    # plain SGD by hand, lr decays every 10 chunks
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-lr * 0.8 ** (step // 10))
    total += loss.item()
    print(f"step {step} loss {loss.item():.9f}", flush=True)
print("ppl", math.exp(total / (step + 1)))
