"""Character-level temporal convolutions with weight norm, tied weights, clipped gradients."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(11)
torch.set_num_threads(1)
VOCAB, EMB, HID, LEVELS, K = 96, 64, 128, 5, 3
BATCH, SEQ, VALID = 48, 320, 160


class Chomp(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        return x[:, :, : -self.n].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, a, b, dilation):
        super().__init__()
        pad = (K - 1) * dilation
        self.conv1 = weight_norm(nn.Conv1d(a, b, K, padding=pad, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(b, b, K, padding=pad, dilation=dilation))
        self.net = nn.Sequential(
            self.conv1, Chomp(pad), nn.ReLU(), nn.Dropout(0.0),
            self.conv2, Chomp(pad), nn.ReLU(), nn.Dropout(0.0),
        )  # fmt: skip
        self.down = nn.Conv1d(a, b, 1) if a != b else None

    def forward(self, x):
        res = x if self.down is None else self.down(x)
        return F.relu(self.net(x) + res)


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(VOCAB, EMB)
        sizes = [EMB] + [HID] * (LEVELS - 1) + [EMB]
        blocks = [TemporalBlock(a, b, 2**i) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]
        self.tcn = nn.Sequential(*blocks)
        self.decoder = nn.Linear(EMB, VOCAB)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        emb = self.encoder(x)
        y = self.tcn(emb.transpose(1, 2))
        return self.decoder(y.transpose(1, 2)).contiguous()


model = TCN()
optimizer = torch.optim.SGD(model.parameters(), lr=4)
text = torch.randint(0, VOCAB, (BATCH, SEQ * 8))
for step in range(6):
    i = step * VALID
    x, y = text[:, i : i + SEQ], text[:, i + 1 : i + SEQ + 1]
    optimizer.zero_grad()
    output = model(x)
    eff = SEQ - VALID
    final = output[:, eff:].reshape(-1, VOCAB)
    loss = F.cross_entropy(final, y[:, eff:].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.15)
    optimizer.step()
    print("| step %d | loss %.8g" % (step, loss.item()), flush=True)
