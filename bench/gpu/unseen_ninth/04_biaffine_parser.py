"""Train a biaffine dependency parser: BiLSTM encoder, arc and label scores, packed sequences."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

N_WORDS, N_TAGS, N_LABELS = 20000, 18, 48
BATCH, MIN_LEN, MAX_LEN, HIDDEN, ARC, REL, STEPS = 384, 20, 80, 600, 500, 200, 12
if device == "cpu":
    N_WORDS, BATCH, MIN_LEN, MAX_LEN, HIDDEN, ARC, REL, STEPS = 300, 8, 5, 16, 32, 32, 16, 10


class Biaffine(nn.Module):
    def __init__(self, dim, out=1, bias_x=True, bias_y=True):
        super().__init__()
        self.bias_x, self.bias_y = bias_x, bias_y
        self.weight = nn.Parameter(torch.zeros(out, dim + bias_x, dim + bias_y))
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, x, y):
        if self.bias_x:
            x = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
        if self.bias_y:
            y = torch.cat([y, torch.ones_like(y[..., :1])], dim=-1)
        xw = torch.einsum("bxi,oij->boxj", x, self.weight)
        return torch.einsum("boxj,byj->boxy", xw, y)


class SharedDropout(nn.Module):
    """The same mask at every time step."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x
        mask = x.new_empty(x.size(0), 1, x.size(2)).bernoulli_(1 - self.p) / (1 - self.p)
        return x * mask


class Parser(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(N_WORDS, 200, padding_idx=0)
        self.tag = nn.Embedding(N_TAGS, 64, padding_idx=0)
        self.lstm = nn.LSTM(264, HIDDEN, 3, batch_first=True, bidirectional=True, dropout=0.33)
        self.drop = SharedDropout(0.33)

        def mlp(dim):
            return nn.Sequential(nn.Linear(2 * HIDDEN, dim), nn.LeakyReLU(0.1), SharedDropout(0.33))

        self.arc_dep, self.arc_head = mlp(ARC), mlp(ARC)
        self.rel_dep, self.rel_head = mlp(REL), mlp(REL)
        self.arc = Biaffine(ARC, bias_y=False)
        self.rel = Biaffine(REL, N_LABELS)

    def forward(self, words, tags, lengths):
        x = self.drop(torch.cat([self.word(words), self.tag(tags)], dim=-1))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        h = self.drop(h)
        arcs = self.arc(self.arc_dep(h), self.arc_head(h)).squeeze(1)
        rels = self.rel(self.rel_dep(h), self.rel_head(h)).permute(0, 2, 3, 1)
        pad = torch.arange(h.size(1)) >= lengths[:, None]
        return arcs.masked_fill(pad.to(arcs.device)[:, None, :], float("-inf")), rels


def make_sentence(generator):
    n = int(torch.randint(MIN_LEN, MAX_LEN + 1, (1,), generator=generator))
    words = torch.randint(1, N_WORDS, (n,), generator=generator)
    tags = words % (N_TAGS - 1) + 1
    # a word attaches to one at most four places to its left; the first is the root
    offset = words % 4 + 1
    heads = (torch.arange(n) - offset).clamp(min=0)
    labels = (tags + tags[heads]) % N_LABELS
    heads[0] = -1
    labels[0] = -1
    return words, tags, heads, labels


def make_batch(generator):
    sentences = [make_sentence(generator) for _ in range(BATCH)]
    lengths = torch.tensor([len(s[0]) for s in sentences])
    words, tags, heads, labels = zip(*sentences, strict=True)
    inputs = [pad_sequence(list(z), batch_first=True).to(device) for z in (words, tags)]
    targets = [
        pad_sequence(list(z), batch_first=True, padding_value=-1).to(device)
        for z in (heads, labels)
    ]
    return *inputs, lengths, *targets


parser = Parser().to(device)
optimizer = torch.optim.Adam(parser.parameters(), lr=2e-3, betas=(0.9, 0.9), eps=1e-12)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
generator = torch.Generator().manual_seed(1)

for step in range(STEPS):
    parser.train()
    words, tags, lengths, heads, labels = make_batch(generator)
    arcs, rels = parser(words, tags, lengths)
    gold = heads >= 0
    arc_loss = F.cross_entropy(arcs[gold], heads[gold])
    index = heads.clamp(min=0)[..., None, None].expand(-1, -1, 1, N_LABELS)
    chosen = rels.gather(2, index).squeeze(2)
    rel_loss = F.cross_entropy(chosen[gold], labels[gold])
    loss = arc_loss + rel_loss
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parser.parameters(), 5.0)
    optimizer.step()
    scheduler.step()
    uas = (arcs.argmax(-1)[gold] == heads[gold]).float().mean().item()
    print(f"step {step} loss {loss.item():.6f} uas {uas:.3f}", flush=True)
