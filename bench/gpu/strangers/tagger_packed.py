# A bidirectional LSTM tagger over packed sequences of different lengths, character convolution in
# front, masked loss, Adam with two groups.
# tiny: --hidden 8 --batch 5 --longest 9 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

ap = argparse.ArgumentParser()
ap.add_argument("--hidden", type=int, default=512)
ap.add_argument("--batch", type=int, default=128)
ap.add_argument("--longest", type=int, default=160)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(5)


class Tagger(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.words, self.chars = nn.Embedding(8000, h), nn.Embedding(60, h // 4)
        self.conv = nn.Conv1d(h // 4, h // 2, 3, padding=1)
        self.rnn = nn.LSTM(h + h // 2, h, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * h, 40)

    def forward(self, words, chars, lengths):
        b, t, c = chars.shape
        ch = self.conv(self.chars(chars.view(b * t, c)).transpose(1, 2)).relu().amax(2)
        x = torch.cat([self.words(words), ch.view(b, t, -1)], 2)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(y)


net = Tagger(a.hidden).to(a.device)
opt = torch.optim.Adam(
    [
        {"params": [*net.words.parameters(), *net.chars.parameters()], "lr": 1e-3},
        {"params": [*net.conv.parameters(), *net.rnn.parameters(), *net.out.parameters()]},
    ],
    lr=3e-4,
)
rng = torch.Generator().manual_seed(1)
for i in range(14):
    n = torch.randint(a.longest // 3, a.longest + 1, (a.batch,), generator=rng)
    words = pad_sequence(
        [torch.randint(1, 8000, (k,), generator=rng) for k in n.tolist()], batch_first=True
    )
    tags = words % 40
    tags[words == 0] = -1
    chars = (words[..., None] * torch.arange(1, 13)) % 60
    out = net(words.to(a.device), chars.to(a.device), n)
    loss = F.cross_entropy(out.flatten(0, 1), tags.to(a.device).flatten(), ignore_index=-1)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    print("step %d loss %.9g" % (i, loss.item()), flush=True)
