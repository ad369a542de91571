"""Sentence VAE (Bowman et al.): transformer encoder, GRU decoder, KL annealing, word dropout,
free bits per latent dimension (on the batch mean)."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

SMALL = os.environ.get("SMALL") == "1"
PAD, BOS, UNK = 0, 1, 2


class SentenceVAE(nn.Module):
    def __init__(self, vocab, emb, hidden, latent, layers, word_drop=0.3):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(1, 256, emb) * 0.02)
        layer = nn.TransformerEncoderLayer(
            emb, 8, emb * 4, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.stats = nn.Linear(emb, 2 * latent)
        self.to_h = nn.Linear(latent, 2 * hidden)
        self.gru = nn.GRU(emb + latent, hidden, 2, batch_first=True, dropout=0.1)
        self.to_emb = nn.Linear(hidden, emb)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.word_drop = word_drop

    def encode(self, x):
        pad = x == PAD
        h = self.encoder(self.emb(x) + self.pos[:, : x.size(1)], src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return self.stats((h * keep).sum(1) / keep.sum(1)).chunk(2, -1)

    def decode(self, x, z):
        drop = (torch.rand(x.shape, device=x.device) < self.word_drop) & (x > UNK)
        e = self.emb(x.masked_fill(drop, UNK))
        e = torch.cat([e, z.unsqueeze(1).expand(-1, x.size(1), -1)], -1)
        h0 = torch.stack(self.to_h(z).tanh().chunk(2, -1)).contiguous()
        h, _ = self.gru(e, h0)
        return F.linear(self.to_emb(h), self.emb.weight, self.bias)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        inp = torch.cat([torch.full_like(x[:, :1], BOS), x[:, :-1]], 1)
        return self.decode(inp, z), mu, logvar


def beta(step, cycle=6):
    return min(1.0, (step % cycle + 1) / (cycle * 0.5))


def sentences(n, vocab, longest):
    g = torch.Generator().manual_seed(3)
    # Zipf-like words
    p = 1.0 / torch.arange(1, vocab - 2).float()
    x = torch.multinomial(p, n * longest, replacement=True, generator=g).view(n, longest) + 3
    lengths = torch.randint(longest // 2, longest + 1, (n, 1), generator=g)
    return x.masked_fill(torch.arange(longest) >= lengths, PAD)


def main():
    torch.manual_seed(13)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if SMALL:
        bs, longest, vocab, sizes = 4, 10, 100, (32, 24, 8, 1)
    else:
        bs, longest, vocab, sizes = 144, 64, 18000, (512, 1024, 64, 6)
    data = TensorDataset(sentences(bs * 12, vocab, longest))
    model = SentenceVAE(vocab, *sizes).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    for step, (x,) in enumerate(DataLoader(data, batch_size=bs, shuffle=True)):
        x = x.to(device)
        logits, mu, logvar = model(x)
        rec = F.cross_entropy(
            logits.reshape(-1, vocab), x.reshape(-1), ignore_index=PAD, reduction="sum"
        ) / len(x)
        kl_dim = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).mean(0)
        kl = kl_dim.clamp(min=0.02).sum()
        loss = rec + beta(step) * kl
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        print(
            f"step {step} loss {loss.item():.7f} kl {kl_dim.sum().item():.6f} "
            f"beta {beta(step):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
