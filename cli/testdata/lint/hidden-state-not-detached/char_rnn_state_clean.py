"""Speech activity detection. The LSTM hears a recording up to a point, then the last chunk is
trained.
"""

import random

import torch
import torch.nn as nn
import torchaudio
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    def __init__(self, listing):
        with open(listing) as f:
            self.rows = [line.split() for line in f]
        self.mel = torchaudio.transforms.MelSpectrogram(16000, n_mels=40)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        wav_path, lab_path = self.rows[i]
        wav, _ = torchaudio.load(wav_path)
        feats = self.mel(wav)[0].T.log1p()
        labels = torch.load(lab_path, map_location="cpu")
        return feats, labels[: feats.size(0)].float()


class Sad(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.rnn = nn.LSTM(40, width, num_layers=3, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, x, state=None):
        h, state = self.rnn(x, state)
        return self.out(h).squeeze(-1), state


@torch.no_grad()
def warm_up(net, past, frames):
    """Only brings the state up to date; the past is not trained."""
    state = None
    for piece in past.split(frames, dim=1):
        _, state = net(piece, state)
    return state


def train(listing, epochs=5, frames=200):
    device = torch.device("cuda")
    net = Sad().to(device)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    bce = nn.BCEWithLogitsLoss()
    loader = DataLoader(Recordings(listing), batch_size=1, shuffle=True, num_workers=2)
    for epoch in range(epochs):
        seen, total = 0, 0.0
        for feats, labels in loader:
            feats, labels = feats.to(device), labels.to(device)
            at = random.randrange(frames, max(frames + 1, feats.size(1) - frames))
            state = warm_up(net, feats[:, :at], frames)
            logits, _ = net(feats[:, at : at + frames], state)
            loss = bce(logits, labels[:, at : at + frames])
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += 1
            total += loss.item()
        print(epoch, total / max(seen, 1))
        torch.save(net.state_dict(), f"sad_{epoch}.pt")


if __name__ == "__main__":
    train("train.lst")
