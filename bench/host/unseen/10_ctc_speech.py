"""Speech by CTC: convolutions with BatchNorm, packed bidirectional LSTMs, lengths that vary."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(1)
torch.set_num_threads(1)
MELS, HID, CHARS = 64, 160, 30


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, (11, 5), (2, 2), (5, 2)), nn.BatchNorm2d(16), nn.Hardtanh(0, 20),
            nn.Conv2d(16, 16, (11, 5), (1, 2), (5, 2)), nn.BatchNorm2d(16), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.rnn = nn.LSTM(16 * MELS // 4, HID, 3, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(2 * HID), nn.Linear(2 * HID, CHARS))

    def forward(self, x, lengths):
        h = self.conv(x[:, None].transpose(2, 3).transpose(2, 3))
        h = h.permute(0, 2, 1, 3).flatten(2)
        lengths = (lengths - 1) // 2 + 1
        packed = pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(h).log_softmax(-1), lengths


def batch(n=20):
    lengths = torch.randint(300, 600, (n,))
    x = torch.zeros(n, int(lengths.max()), MELS)
    for i, length in enumerate(lengths):
        x[i, :length] = torch.randn(int(length), MELS)
    counts = torch.randint(20, 60, (n,))
    return x, lengths, torch.randint(1, CHARS, (int(counts.sum()),)), counts


model = Acoustic()
opt = torch.optim.AdamW(model.parameters(), 3e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=10)
ctc = nn.CTCLoss(zero_infinity=True)
for step in range(3):
    x, lengths, targets, counts = batch()
    logp, out = model(x, lengths)
    loss = ctc(logp.transpose(0, 1), targets, out, counts)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 400)
    opt.step()
    sched.step()
    print("batch %d ctc loss: %.8g" % (step, loss.item()), flush=True)
