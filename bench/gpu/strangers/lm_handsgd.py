# A word-level language model in the manner of PyTorch's example: hidden state detached and carried
# on, no optimizer object (weights are moved by hand), the learning rate cut by hand.
# tiny: --nhid 12 --bptt 8 --batch_size 5 --ntoken 50 --device cpu
import argparse

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--nhid", type=int, default=650)
parser.add_argument("--bptt", type=int, default=70)
parser.add_argument("--batch_size", type=int, default=160)
parser.add_argument("--ntoken", type=int, default=20000)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(1111)


class RNNModel(nn.Module):
    def __init__(self, ntoken, nhid, nlayers=2):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, nhid)
        self.rnn = nn.LSTM(nhid, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers, self.ntoken = nhid, nlayers, ntoken
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        decoded = self.decoder(output).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        w = next(self.parameters())
        return (
            w.new_zeros(self.nlayers, bsz, self.nhid),
            w.new_zeros(self.nlayers, bsz, self.nhid),
        )


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


steps = 14
corpus = torch.randint(
    0,
    args.ntoken,
    (args.bptt * steps + 1, args.batch_size),
    generator=torch.Generator().manual_seed(3),
).to(args.device)
model = RNNModel(args.ntoken, args.nhid).to(args.device)
criterion = nn.NLLLoss()
lr = 5.0
model.train()
hidden = model.init_hidden(args.batch_size)
for batch, i in enumerate(range(0, corpus.size(0) - 1, args.bptt)):
    data = corpus[i : i + args.bptt]
    targets = corpus[i + 1 : i + 1 + args.bptt].view(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    if batch == 8:
        lr /= 4.0
    print("step %d loss %.9g" % (batch, loss.item()), flush=True)
