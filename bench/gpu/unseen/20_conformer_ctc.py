import math
import os

import torch
import torch.nn.functional as F
from torch import nn

SMALL = os.environ.get("SMALL") == "1"
DIM, HEADS, LAYERS = (32, 2, 2) if SMALL else (256, 4, 8)
BATCH, MAX_T, N_MELS, VOCAB = (2, 80, 40, 12) if SMALL else (64, 800, 80, 64)
STEPS = 14
torch.backends.cudnn.deterministic = True


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class FeedForward(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(d),
            nn.Linear(d, 4 * d),
            Swish(),
            nn.Dropout(p),
            nn.Linear(4 * d, d),
            nn.Dropout(p),
        )

    def forward(self, x):
        return self.net(x)


class RelAttention(nn.Module):
    """self attention with a learned bias per clipped relative distance"""

    def __init__(self, d, h, p, clip=64):
        super().__init__()
        self.h, self.clip = h, clip
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.rel = nn.Embedding(2 * clip + 1, h)
        self.drop = nn.Dropout(p)

    def forward(self, x, pad):
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        pos = torch.arange(T, device=x.device)
        bias = self.rel(
            (pos[None] - pos[:, None]).clamp(-self.clip, self.clip) + self.clip
        ).permute(2, 0, 1)
        score = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D // self.h) + bias
        score = score.masked_fill(pad[:, None, None, :], -1e9)
        a = self.drop(torch.softmax(score, -1))
        return self.drop(self.out(torch.matmul(a, v).transpose(1, 2).reshape(B, T, D)))


class ConvModule(nn.Module):
    def __init__(self, d, k, p):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.pw1, self.pw2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 1)
        self.dw = nn.Conv1d(d, d, k, padding=k // 2, groups=d)
        self.bn = nn.BatchNorm1d(d)
        self.act, self.drop = Swish(), nn.Dropout(p)

    def forward(self, x, pad):
        x = self.norm(x).transpose(1, 2)
        x = F.glu(self.pw1(x), dim=1).masked_fill(pad[:, None], 0.0)
        x = self.act(self.bn(self.dw(x)))
        return self.drop(self.pw2(x)).transpose(1, 2)


class ConformerBlock(nn.Module):
    def __init__(self, d, h, p=0.1, k=15):
        super().__init__()
        self.ff1, self.ff2 = FeedForward(d, p), FeedForward(d, p)
        self.attn, self.conv, self.norm = (
            RelAttention(d, h, p),
            ConvModule(d, k, p),
            nn.LayerNorm(d),
        )

    def forward(self, x, pad):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attn(x, pad)
        x = x + self.conv(x, pad)
        x = x + 0.5 * self.ff2(x)
        return self.norm(x)


class ConformerCTC(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = nn.Sequential(
            nn.Conv2d(1, DIM, 3, 2, 1), nn.ReLU(), nn.Conv2d(DIM, DIM, 3, 2, 1), nn.ReLU()
        )
        self.lin = nn.Linear(DIM * (N_MELS // 4), DIM)
        self.blocks = nn.ModuleList([ConformerBlock(DIM, HEADS) for _ in range(LAYERS)])
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, feats, lengths):
        x = self.sub(feats.unsqueeze(1))
        B, C, T, M = x.shape
        x = self.lin(x.transpose(1, 2).reshape(B, T, C * M))
        out_len = torch.div(lengths + 3, 4, rounding_mode="floor").clamp(max=T)
        pad = torch.arange(T, device=x.device)[None] >= out_len[:, None]
        for blk in self.blocks:
            x = blk(x, pad)
        return F.log_softmax(self.head(x), dim=-1), out_len


def spec_augment(x, gen):
    for _ in range(2):
        f0 = int(torch.randint(0, N_MELS - 8, (1,), generator=gen))
        x[:, :, f0 : f0 + 8] = 0
    return x


def utterances(gen):
    codebook = torch.randn(VOCAB, N_MELS, generator=gen)
    while True:
        lengths = torch.randint(MAX_T // 2, MAX_T + 1, (BATCH,), generator=gen)
        lengths[0] = MAX_T
        tlen = lengths // 20
        targets = torch.randint(1, VOCAB, (BATCH, int(tlen.max())), generator=gen)
        feats = 0.3 * torch.randn(BATCH, MAX_T, N_MELS, generator=gen)
        for b in range(BATCH):
            lab = targets[b, : tlen[b]].repeat_interleave(20)
            feats[b, : len(lab)] += codebook[lab]
            feats[b, lengths[b] :] = 0
        yield spec_augment(feats, gen), lengths, targets, tlen


def main():
    torch.manual_seed(64)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = ConformerCTC().to(device)
    # CTC backward is not deterministic on cuda, so the loss runs on the cpu
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    opt = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    warmup = 30
    noam = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: DIM**-0.5 * min((s + 1) ** -0.5, (s + 1) * warmup**-1.5)
    )
    data = utterances(torch.Generator().manual_seed(64))
    model.train()
    for step in range(STEPS):
        feats, flen, targets, tlen = next(data)
        logp, olen = model(feats.to(device), flen.to(device))
        loss = ctc(logp.transpose(0, 1).float().cpu(), targets, olen.cpu(), tlen)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        noam.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
