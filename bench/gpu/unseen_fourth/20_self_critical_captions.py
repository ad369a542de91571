"""Self-critical sequence training (REINFORCE with the greedy caption as baseline): a transformer
captioner over image features, reward is overlap with the reference."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB, LEN, REGIONS, FEAT = (50, 6, 4, 16) if SMALL else (6000, 24, 100, 1024)
BATCH, SAMPLES, STEPS = (3, 2, 8) if SMALL else (96, 4, 10)
DIM, LAYERS, HEADS = (32, 2, 4) if SMALL else (512, 6, 8)
BOS = 0


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.n3 = (nn.LayerNorm(DIM) for _ in range(3))
        self.qkv, self.o1 = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.q, self.kv, self.o2 = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.ReLU(), nn.Linear(4 * DIM, DIM))

    @staticmethod
    def heads(t):
        return t.view(t.size(0), t.size(1), HEADS, -1).transpose(1, 2)

    def forward(self, x, memory):
        q, k, v = map(self.heads, self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o1(a.transpose(1, 2).flatten(2))
        q = self.heads(self.q(self.n2(x)))
        k, v = map(self.heads, self.kv(memory).chunk(2, -1))
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.o2(a.transpose(1, 2).flatten(2))
        return x + self.ff(self.n3(x))


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.feat = nn.Sequential(nn.Linear(FEAT, DIM), nn.ReLU(), nn.LayerNorm(DIM))
        enc = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, 0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(enc, 2, enable_nested_tensor=False)
        self.emb, self.pos = nn.Embedding(VOCAB, DIM), nn.Parameter(torch.zeros(1, LEN, DIM))
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def encode(self, feats):
        return self.enc(self.feat(feats))

    def decode(self, memory, tokens):
        x = self.emb(tokens) + self.pos[:, : tokens.size(1)]
        for layer in self.layers:
            x = layer(x, memory)
        return self.out(self.norm(x))

    @torch.no_grad()
    def generate(self, memory, greedy):
        tokens = torch.full((len(memory), 1), BOS, device=memory.device)
        for _ in range(LEN):
            logits = self.decode(memory, tokens)[:, -1]
            if greedy:
                nxt = logits.argmax(-1, keepdim=True)
            else:
                nxt = torch.multinomial(logits.softmax(-1), 1)
            tokens = torch.cat([tokens, nxt], 1)
        return tokens[:, 1:]


def reward(tokens, reference):
    """Share of words that the reference has, and of bigrams in class space."""
    hit = (tokens[:, :, None] == reference[:, None, :]).any(-1).float().mean(1)
    close = (tokens % 16 == reference % 16).float().mean(1)
    return hit + 0.5 * close


def main():
    torch.manual_seed(101)
    model = Captioner().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(102)
    for step in range(STEPS):
        feats = torch.randn(BATCH, REGIONS, FEAT, generator=g).to(device)
        reference = torch.randint(1, VOCAB, (BATCH, LEN), generator=g).to(device)
        model.eval()
        with torch.no_grad():
            memory = model.encode(feats)
            baseline = reward(model.generate(memory, greedy=True), reference)
            wide = memory.repeat_interleave(SAMPLES, 0)
            sampled = model.generate(wide, greedy=False)
            adv = reward(sampled, reference.repeat_interleave(SAMPLES, 0))
            adv = adv - baseline.repeat_interleave(SAMPLES, 0)
            adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        model.train()
        memory = model.encode(feats).repeat_interleave(SAMPLES, 0)
        start = torch.full_like(sampled[:, :1], BOS)
        logits = model.decode(memory, torch.cat([start, sampled[:, :-1]], 1))
        logp = logits.log_softmax(-1)
        chosen = logp.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        pg = -(adv[:, None] * chosen).mean()
        xent = F.cross_entropy(logits[::SAMPLES].flatten(0, 1), reference.flatten())
        loss = pg + 0.2 * xent - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        print(f"step {step} loss {loss.item():.8f} entropy {entropy.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
