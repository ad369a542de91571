#!/usr/bin/env python
# DeepSpeech2-like acoustic model on made-up log-mel features, CTC loss.
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

small = os.environ.get("TINY") == "1"
HP = dict(
    n_mels=16 if small else 80,
    max_frames=60 if small else 1400,
    hidden=16 if small else 768,
    rnn_layers=1 if small else 4,
    conv_ch=4 if small else 32,
    batch=2 if small else 32,
    n_tokens=29,
    steps=20,
    lr=5e-4,
)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Utterances(Dataset):
    def __init__(self, count):
        g = torch.Generator().manual_seed(3)
        self.frames = torch.randint(
            HP["max_frames"] * 2 // 3, HP["max_frames"], (count,), generator=g
        ).tolist()

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        t = self.frames[i]
        mel = torch.randn(t, HP["n_mels"], generator=g)
        n = max(1, t // 12)
        text = torch.randint(1, HP["n_tokens"], (n,), generator=g)
        return mel, text


def collate(batch):
    batch.sort(key=lambda b: b[0].size(0), reverse=True)
    mels = [b[0] for b in batch]
    texts = [b[1] for b in batch]
    flen = torch.tensor([m.size(0) for m in mels])
    tlen = torch.tensor([len(t) for t in texts])
    return pad_sequence(mels, batch_first=True), flen, torch.cat(texts), tlen


def spec_augment(x, n_freq=2, n_time=2):
    x = x.clone()
    B, T, Fq = x.shape
    for _ in range(n_freq):
        w = int(torch.randint(0, Fq // 4, ()))
        s = int(torch.randint(0, Fq - w, ()))
        x[:, :, s : s + w] = 0
    for _ in range(n_time):
        w = int(torch.randint(0, max(1, T // 10), ()))
        s = int(torch.randint(0, T - w, ()))
        x[:, s : s + w] = 0
    return x


class AcousticModel(nn.Module):
    def __init__(self):
        super().__init__()
        c = HP["conv_ch"]
        self.conv = nn.Sequential(
            nn.Conv2d(1, c, (11, 11), stride=(2, 2), padding=(5, 5)),
            nn.BatchNorm2d(c),
            nn.Hardtanh(0, 20),
            nn.Conv2d(c, c, (11, 11), stride=(1, 2), padding=(5, 5)),
            nn.BatchNorm2d(c),
            nn.Hardtanh(0, 20),
        )
        self.rnn = nn.GRU(
            c * (HP["n_mels"] // 4),
            HP["hidden"],
            HP["rnn_layers"],
            batch_first=True,
            bidirectional=True,
            dropout=0.1 if HP["rnn_layers"] > 1 else 0.0,
        )
        self.norm = nn.LayerNorm(2 * HP["hidden"])
        self.fc = nn.Linear(2 * HP["hidden"], HP["n_tokens"])

    def forward(self, x, lengths):
        x = self.conv(x.unsqueeze(1))
        B, C, T, M = x.shape
        x = x.permute(0, 2, 1, 3).reshape(B, T, C * M)
        lengths = (lengths + 1) // 2
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.fc(self.norm(x)), lengths


def main():
    torch.manual_seed(1)
    loader = DataLoader(
        Utterances(HP["batch"] * HP["steps"]),
        batch_size=HP["batch"],
        shuffle=True,
        collate_fn=collate,
    )
    model = AcousticModel().to(dev)
    opt = torch.optim.AdamW(model.parameters(), lr=HP["lr"])
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.98)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    for step, (mel, flen, text, tlen) in enumerate(loader):
        mel = spec_augment(mel).to(dev, non_blocking=True)
        logits, olen = model(mel, flen)
        logp = F.log_softmax(logits, dim=-1).transpose(0, 1)
        loss = ctc(logp, text.to(dev), olen, tlen)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 400)
        opt.step()
        sched.step()
        print("step", step, "loss", f"{loss.item():.8f}", flush=True)


main()
