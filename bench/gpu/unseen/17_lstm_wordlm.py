import argparse
import math
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2")

import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description="Word-level LSTM language model, truncated BPTT")
s = os.environ.get("SMALL") == "1"
parser.add_argument("--emsize", type=int, default=24 if s else 1024)
parser.add_argument("--nhid", type=int, default=24 if s else 1024)
parser.add_argument("--nlayers", type=int, default=2 if s else 3)
parser.add_argument("--ntoken", type=int, default=90 if s else 10000)
parser.add_argument("--lr", type=float, default=5.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--batch_size", type=int, default=4 if s else 256)
parser.add_argument("--bptt", type=int, default=10 if s else 128)
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--log-interval", type=int, default=2)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
N_CHUNKS = 18


def make_corpus():
    """order-1 markov-like stream: next = (a * cur + noise) mod V"""
    g = torch.Generator().manual_seed(args.seed)
    n = args.batch_size * (args.bptt * N_CHUNKS + 1)
    steps = torch.randint(0, 5, (n,), generator=g)
    return torch.cumsum(steps, 0) % args.ntoken


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous().to(device)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers = nhid, nlayers
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (
            weight.new_zeros(self.nlayers, bsz, self.nhid),
            weight.new_zeros(self.nlayers, bsz, self.nhid),
        )


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


train_data = batchify(make_corpus(), args.batch_size)
model = RNNModel(args.ntoken, args.emsize, args.nhid, args.nlayers, args.dropout).to(device)
criterion = nn.NLLLoss()


def train_one_epoch(lr):
    model.train()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-lr)  # plain SGD, no optimizer object
        total_loss += loss.item()
        if batch % args.log_interval == 0:
            cur = total_loss / args.log_interval if batch else total_loss
            print(
                f"step {batch} loss {loss.item():.6f} avg {cur:.4f} ppl {math.exp(min(cur, 20)):.2f}"  # noqa: E501
            )
            total_loss = 0.0


train_one_epoch(args.lr)
