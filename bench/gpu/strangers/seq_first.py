# Word-language-model style: nn.TransformerEncoder with (seq, batch, dim) layout, causal mask
# argument, log_softmax + nll_loss over flattened outputs, clipping. tiny: --emsize 16 --nhid 32
# --nlayers 2 --bptt 10 --batch-size 6 --ntoken 50 --device cpu --steps 4
import argparse
import math

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--emsize", type=int, default=400)
parser.add_argument("--nhead", type=int, default=2)
parser.add_argument("--nhid", type=int, default=1600)
parser.add_argument("--nlayers", type=int, default=6)
parser.add_argument("--bptt", type=int, default=256)
parser.add_argument("--batch-size", type=int, default=40)
parser.add_argument("--ntoken", type=int, default=12000)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(1111)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=5000):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div), torch.cos(position * div)
        self.register_buffer("pe", pe.unsqueeze(0).transpose(0, 1))

    def forward(self, x):
        return x + self.pe[: x.size(0), :]


class TransformerModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.src_mask = None
        self.pos_encoder = PositionalEncoding(args.emsize)
        layer = nn.TransformerEncoderLayer(args.emsize, args.nhead, args.nhid, 0.0)
        self.encoder = nn.TransformerEncoder(layer, args.nlayers, enable_nested_tensor=False)
        self.input_emb = nn.Embedding(args.ntoken, args.emsize)
        self.decoder = nn.Linear(args.emsize, args.ntoken)

    def forward(self, src, has_mask=True):
        if has_mask:
            if self.src_mask is None or self.src_mask.size(0) != len(src):
                self.src_mask = torch.log(torch.tril(torch.ones(len(src), len(src)))).to(src.device)
        src = self.input_emb(src) * math.sqrt(args.emsize)
        output = self.encoder(self.pos_encoder(src), mask=self.src_mask)
        return nn.functional.log_softmax(self.decoder(output), dim=-1)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(args.device)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


train_data = batchify(
    torch.randint(
        0,
        args.ntoken,
        ((args.steps * args.bptt + 1) * args.batch_size,),
        generator=torch.Generator().manual_seed(2),
    ),
    args.batch_size,
)
model = TransformerModel().to(args.device)
criterion = nn.NLLLoss()
lr = 0.05
model.train()
for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
    data, targets = get_batch(train_data, i)
    model.zero_grad()
    output = model(data).view(-1, args.ntoken)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    print(
        "step %d loss %.9g ppl %8.2f" % (batch, loss.item(), math.exp(min(20, loss.item()))),
        flush=True,
    )
