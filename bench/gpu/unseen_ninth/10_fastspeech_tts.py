"""Train a FastSpeech-2 style text-to-mel model with duration, pitch and energy predictors."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(314)
device = "cuda" if torch.cuda.is_available() else "cpu"

PHONES, MELS = 80, 80
DIM, HIDDEN, LAYERS, BATCH, PHONE_LEN, STEPS = 384, 1536, 4, 32, (60, 120), 10
if device == "cpu":
    DIM, HIDDEN, LAYERS, BATCH, PHONE_LEN, STEPS = 32, 64, 1, 4, (8, 14), 8


class Utterances(Dataset):
    def __init__(self, size):
        self.size = size
        self.timbre = torch.randn(PHONES, MELS, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        n = int(torch.randint(*PHONE_LEN, (1,), generator=g))
        phones = torch.randint(1, PHONES, (n,), generator=g)
        durations = 3 + phones % 7 + torch.randint(0, 3, (n,), generator=g)
        frames = self.timbre[phones].repeat_interleave(durations, 0)
        mel = frames + 0.1 * torch.randn(frames.shape, generator=g)
        pitch = torch.sin(phones.float()) + 0.1 * torch.randn(n, generator=g)
        energy = torch.cos(phones.float())
        return phones, durations, pitch, energy, mel


def collate(items):
    phones, durations, pitch, energy, mel = (
        pad_sequence(list(z), batch_first=True) for z in zip(*items, strict=True)
    )
    return {
        "phones": phones,
        "durations": durations,
        "pitch": pitch,
        "energy": energy,
        "mel": mel,
        "phone_len": torch.tensor([len(x[0]) for x in items]),
        "mel_len": torch.tensor([len(x[4]) for x in items]),
    }


def padding_mask(lengths, size):
    return torch.arange(size, device=lengths.device)[None] >= lengths[:, None]


class FFTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(DIM, 2, dropout=0.1, batch_first=True)
        self.conv1 = nn.Conv1d(DIM, HIDDEN, 9, padding=4)
        self.conv2 = nn.Conv1d(HIDDEN, DIM, 1)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, pad):
        y, _ = self.attn(x, x, x, key_padding_mask=pad)
        x = self.norm1(x + self.drop(y)).masked_fill(pad[..., None], 0)
        y = self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + self.drop(y)).masked_fill(pad[..., None], 0)


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv1d(DIM, DIM, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x):
        x = self.norm1(F.relu(self.conv1(x.transpose(1, 2))).transpose(1, 2))
        x = self.norm2(F.relu(self.conv2(x.transpose(1, 2))).transpose(1, 2))
        return self.out(F.dropout(x, 0.5, self.training)).squeeze(-1)


class FastSpeech(nn.Module):
    def __init__(self, max_len=2048):
        super().__init__()
        self.embed = nn.Embedding(PHONES, DIM, padding_idx=0)
        self.encoder = nn.ModuleList(FFTBlock() for _ in range(LAYERS))
        self.decoder = nn.ModuleList(FFTBlock() for _ in range(LAYERS))
        self.duration, self.pitch, self.energy = Predictor(), Predictor(), Predictor()
        self.pitch_in, self.energy_in = nn.Linear(1, DIM), nn.Linear(1, DIM)
        self.to_mel = nn.Linear(DIM, MELS)
        sizes = [MELS, 512, 512, 512, 512, MELS]
        self.postnet = nn.Sequential()
        for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            self.postnet.append(nn.Conv1d(a, b, 5, padding=2))
            self.postnet.append(nn.BatchNorm1d(b))
            self.postnet.append(nn.Tanh() if i < 4 else nn.Identity())
            self.postnet.append(nn.Dropout(0.5))
        angle = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, DIM, 2) / DIM)
        self.register_buffer("pos", torch.cat([angle.sin(), angle.cos()], 1))

    def forward(self, b):
        pad = padding_mask(b["phone_len"], b["phones"].shape[1])
        x = self.embed(b["phones"]) + self.pos[: pad.shape[1]]
        for layer in self.encoder:
            x = layer(x, pad)
        log_dur, pitch = self.duration(x.detach()), self.pitch(x)
        x = x + self.pitch_in(b["pitch"][..., None])
        energy = self.energy(x)
        x = x + self.energy_in(b["energy"][..., None])
        # length regulator
        x = pad_sequence(
            [row.repeat_interleave(d, 0) for row, d in zip(x, b["durations"], strict=True)], True
        )
        mel_pad = padding_mask(b["mel_len"], x.shape[1])
        x = x + self.pos[: x.shape[1]]
        for layer in self.decoder:
            x = layer(x, mel_pad)
        mel = self.to_mel(x)
        refined = mel + self.postnet(mel.transpose(1, 2)).transpose(1, 2)
        return mel, refined, log_dur, pitch, energy, pad, mel_pad


loader = DataLoader(Utterances(BATCH * STEPS), batch_size=BATCH, shuffle=True, collate_fn=collate)
model = FastSpeech().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 5, 1.0))
for step, batch in enumerate(loader):
    batch = {k: v.to(device) for k, v in batch.items()}
    mel, refined, log_dur, pitch, energy, pad, mel_pad = model(batch)
    frames, phones = ~mel_pad, ~pad
    loss = F.l1_loss(mel[frames], batch["mel"][frames])
    loss = loss + F.l1_loss(refined[frames], batch["mel"][frames])
    loss = loss + F.mse_loss(log_dur[phones], torch.log1p(batch["durations"][phones].float()))
    loss = loss + F.mse_loss(pitch[phones], batch["pitch"][phones])
    loss = loss + F.mse_loss(energy[phones], batch["energy"][phones])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
