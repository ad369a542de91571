"""DeepSpeech-like recogniser: convolutions, packed bidirectional LSTMs, CTC over time-first log
probabilities.
"""

# tiny: --hidden 16 --batch 4 --seconds 1 --layers 1
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Utterances(Dataset):
    def __init__(self, n, max_frames, mels=80, chars=29):
        g = torch.Generator().manual_seed(77)
        self.lengths = torch.randint(max_frames // 2, max_frames + 1, (n,), generator=g).tolist()
        self.chars, self.mels = chars, mels

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        spec = torch.randn(self.lengths[i], self.mels, generator=g)
        text = torch.randint(1, self.chars, (max(1, self.lengths[i] // 16),), generator=g)
        return spec, text


def collate(batch):
    batch.sort(key=lambda b: len(b[0]), reverse=True)
    specs, texts = zip(*batch)
    return (
        pad_sequence(specs, batch_first=True),
        torch.tensor([len(s) for s in specs]),
        torch.cat(texts),
        torch.tensor([len(t) for t in texts]),
    )


class DeepSpeech(nn.Module):
    def __init__(self, mels, hidden, layers, chars):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (11, 21), (2, 2), (5, 10)),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (11, 11), (1, 2), (5, 5)),
            nn.Hardtanh(0, 20, inplace=True),
        )
        self.rnns = nn.ModuleList(
            [
                nn.LSTM(32 * (mels // 4) if i == 0 else hidden, hidden, bidirectional=True)
                for i in range(layers)
            ]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(layers)])
        self.fc = nn.Linear(hidden, chars)

    def forward(self, x, lengths):
        lengths = (lengths + 1) // 2
        x = self.conv(x.unsqueeze(1))
        b, c, t, f = x.shape
        x = x.permute(2, 0, 1, 3).reshape(t, b, c * f)
        for rnn, norm in zip(self.rnns, self.norms):
            packed = pack_padded_sequence(x, lengths.cpu())
            out, _ = pad_packed_sequence(rnn(packed)[0], total_length=t)
            x = norm(out.view(t, b, 2, -1).sum(2))
        return F.log_softmax(self.fc(x), -1), lengths


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=640)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--lr", type=float, default=5e-6)
    parser.add_argument("--clip", type=float, default=5.0)
    args = parser.parse_args()
    torch.manual_seed(9)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = DeepSpeech(80, args.hidden, args.layers, 29).to(device)
    criterion = nn.CTCLoss(blank=0, zero_infinity=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    loader = DataLoader(
        Utterances(args.batch * 20, args.seconds * 100),
        args.batch,
        shuffle=True,
        collate_fn=collate,
    )
    for i, (specs, lengths, texts, text_lengths) in enumerate(loader):
        log_probs, out_lengths = model(specs.to(device), lengths)
        loss = criterion(log_probs, texts.to(device), out_lengths, text_lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        print("step", i, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    main()
