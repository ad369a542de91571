# An LSTM language model with the hidden state carried from batch to batch (truncated
# backpropagation), batch second, tied weights, SGD annealed by hand. tiny: --nhid 16 --nlayers 2
# --bptt 10 --batch-size 6 --ntoken 50 --device cpu --steps 4
import argparse

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--nhid", type=int, default=1000)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--bptt", type=int, default=128)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--ntoken", type=int, default=20000)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(1)


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(args.ntoken, args.nhid)
        self.rnn = nn.LSTM(args.nhid, args.nhid, args.nlayers)
        self.decoder = nn.Linear(args.nhid, args.ntoken)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output).view(-1, args.ntoken), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(args.nlayers, bsz, args.nhid), weight.new_zeros(
            args.nlayers, bsz, args.nhid
        )


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


data = torch.randint(
    0,
    args.ntoken,
    (args.steps * args.bptt + 1, args.batch_size),
    generator=torch.Generator().manual_seed(2),
).to(args.device)
model = RNNModel().to(args.device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hidden = model.init_hidden(args.batch_size)
for step in range(args.steps):
    i = step * args.bptt
    x, y = data[i : i + args.bptt], data[i + 1 : i + 1 + args.bptt].reshape(-1)
    optimizer.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(x, hidden)
    loss = criterion(output, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
