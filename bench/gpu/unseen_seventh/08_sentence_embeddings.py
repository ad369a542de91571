"""Bi-encoder sentence embeddings: (query, positive, hard negative) with in-batch negatives."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import DistilBertConfig, DistilBertModel, get_linear_schedule_with_warmup

CUDA = torch.cuda.is_available()
PAD = 0


class Triplets(Dataset):
    """Anchor shares its 'topic' tokens with the positive; the hard negative half of them."""

    def __init__(self, n, vocab, max_len, seed):
        rnd = random.Random(seed)
        self.rows = []
        for _ in range(n):
            topic = [rnd.randrange(10, vocab) for _ in range(max_len // 4)]
            self.rows.append(
                tuple(self.sentence(rnd, topic, share, vocab, max_len) for share in (1.0, 1.0, 0.5))
            )

    @staticmethod
    def sentence(rnd, topic, share, vocab, max_len):
        size = rnd.randint(max_len * 3 // 4, max_len)
        kept = topic[: int(len(topic) * share)]
        rest = [rnd.randrange(10, vocab) for _ in range(size - len(kept))]
        words = kept + rest
        rnd.shuffle(words)
        return words

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad(sentences):
    width = max(len(s) for s in sentences)
    ids = torch.full((len(sentences), width), PAD)
    for i, s in enumerate(sentences):
        ids[i, : len(s)] = torch.tensor(s)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def smart_collate(rows):
    return [pad(col) for col in zip(*rows)]


class SentenceEncoder(nn.Module):
    def __init__(self, config, out_dim):
        super().__init__()
        self.backbone = DistilBertModel(config)
        self.proj = nn.Linear(config.dim, out_dim)

    def forward(self, batch):
        h = self.backbone(**batch).last_hidden_state
        m = batch["attention_mask"].unsqueeze(-1).to(h.dtype)
        return F.normalize(self.proj((h * m).sum(1) / m.sum(1)), dim=-1)


class MultipleNegativesRankingLoss(nn.Module):
    def __init__(self, encoder, scale=20.0):
        super().__init__()
        self.encoder = encoder
        self.scale = scale

    def forward(self, features):
        anchor, pos, neg = [self.encoder(f) for f in features]
        candidates = torch.cat([pos, neg])
        scores = anchor @ candidates.t() * self.scale
        target = torch.arange(len(anchor), device=scores.device)
        forward_loss = F.cross_entropy(scores, target)
        backward_loss = F.cross_entropy(scores[:, : len(anchor)].t(), target)
        return (forward_loss + backward_loss) / 2


@torch.no_grad()
def evaluate(encoder, loader, device):
    encoder.eval()
    hits, seen = 0, 0
    for a, p, _ in loader:
        ea = encoder({k: v.to(device) for k, v in a.items()})
        ep = encoder({k: v.to(device) for k, v in p.items()})
        hits += ((ea @ ep.t()).argmax(1).cpu() == torch.arange(len(ea))).sum().item()
        seen += len(ea)
    encoder.train()
    return hits / seen


def fit(epochs=2, batch_size=96 if CUDA else 4, lr=5e-5):
    torch.manual_seed(12)
    device = "cuda" if CUDA else "cpu"
    vocab, max_len = (20000, 128) if CUDA else (200, 16)
    per_epoch = 5 if CUDA else 2
    config = DistilBertConfig(
        vocab_size=vocab,
        max_position_embeddings=max_len,
        dropout=0.0,
        attention_dropout=0.0,
        dim=512 if CUDA else 32,
        hidden_dim=2048 if CUDA else 64,
        n_heads=8 if CUDA else 2,
        n_layers=6 if CUDA else 2,
    )
    objective = MultipleNegativesRankingLoss(SentenceEncoder(config, 256 if CUDA else 16))
    objective.to(device).train()

    train = DataLoader(
        Triplets(batch_size * per_epoch, vocab, max_len, 1),
        batch_size,
        shuffle=True,
        collate_fn=smart_collate,
        drop_last=True,
    )
    dev = DataLoader(Triplets(batch_size, vocab, max_len, 2), 32, collate_fn=smart_collate)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=lr, weight_decay=0.01)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, epochs * len(train))

    for epoch in range(epochs):
        for n, features in enumerate(train):
            features = [{k: v.to(device) for k, v in f.items()} for f in features]
            value = objective(features)
            value.backward()
            nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print(f"epoch {epoch} batch {n} loss {value.item():.8f}", flush=True)
        print(f"epoch {epoch} recall@1 {evaluate(objective.encoder, dev, device):.4f}")


fit()
