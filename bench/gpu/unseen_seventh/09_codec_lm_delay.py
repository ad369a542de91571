"""Text-to-music codec language model: 4 residual codebooks in a delay pattern (MusicGen-ish).

Each decoder layer is compiled separately, since the layers are all alike.
"""

import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()


@dataclasses.dataclass(frozen=True)
class Config:
    codebooks: int = 4
    card: int = 2048 if CUDA else 32
    frames: int = 750 if CUDA else 20
    text_len: int = 32 if CUDA else 4
    text_vocab: int = 8000 if CUDA else 50
    dim: int = 768 if CUDA else 32
    heads: int = 12 if CUDA else 2
    layers: int = 8 if CUDA else 2
    batch: int = 12 if CUDA else 2
    steps: int = 8 if CUDA else 3
    lr: float = 2e-4
    compile: bool = CUDA


def delay(codes, special):
    """codes (B, K, T) -> (B, K, T + K - 1), codebook k shifted right by k."""
    b, k, t = codes.shape
    out = codes.new_full((b, k, t + k - 1), special)
    for i in range(k):
        out[:, i, i : i + t] = codes[:, i]
    return out


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(dim) for _ in range(3))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.cq = nn.Linear(dim, dim, bias=False)
        self.ckv = nn.Linear(dim, 2 * dim, bias=False)
        self.co = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x, text):
        q, k, v = (self.split(t) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        q = self.split(self.cq(self.ln2(x)))
        k, v = (self.split(t) for t in self.ckv(text).chunk(2, -1))
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.co(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln3(x))))


class CodecLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(c.card + 1, c.dim) for _ in range(c.codebooks))
        self.text = nn.Embedding(c.text_vocab, c.dim)
        self.pos = nn.Parameter(0.02 * torch.randn(c.frames + c.codebooks, c.dim))
        self.layers = nn.ModuleList(DecoderLayer(c.dim, c.heads) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        self.heads = nn.ModuleList(nn.Linear(c.dim, c.card) for _ in range(c.codebooks))
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, codes, text):
        x = sum(e(codes[:, i]) for i, e in enumerate(self.emb)) + self.pos[: codes.size(-1)]
        text = self.text(text)
        for layer in self.layers:
            x = layer(x, text)
        x = self.norm(x)
        return torch.stack([h(x) for h in self.heads], 1)


class MusicTrainer:
    def __init__(self, c):
        self.c = c
        self.device = torch.device("cuda" if CUDA else "cpu")
        torch.manual_seed(440)
        self.model = CodecLM(c).to(self.device)
        if c.compile:
            for layer in self.model.layers:
                layer.compile()
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=c.lr, betas=(0.9, 0.95))
        self.gen = torch.Generator().manual_seed(441)

    def batch(self):
        c = self.c
        text = torch.randint(0, c.text_vocab, (c.batch, c.text_len), generator=self.gen)
        u = torch.rand(c.batch, c.codebooks, c.frames, generator=self.gen)
        codes = (u.pow(2) * c.card).long()
        return text.to(self.device), delay(codes, c.card).to(self.device)

    def loss(self, text, seq):
        start = torch.full_like(seq[..., :1], self.c.card)
        inputs = torch.cat([start, seq[..., :-1]], -1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=CUDA):
            logits = self.model(inputs, text)
        total = 0.0
        for k in range(self.c.codebooks):
            total = total + F.cross_entropy(
                logits[:, k].float().transpose(1, 2), seq[:, k], ignore_index=self.c.card
            )
        return total / self.c.codebooks

    def train(self):
        for step in range(self.c.steps):
            loss = self.loss(*self.batch())
            self.optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optim.step()
            print(f"step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    MusicTrainer(Config()).train()
