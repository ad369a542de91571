"""Named entities with an ELECTRA encoder: rare classes get a weight, sub-words are ignored."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import ElectraConfig, ElectraModel, get_linear_schedule_with_warmup

SMALL = os.environ.get("SMALL") == "1"
LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
IGNORE = -100


class Sentences(Dataset):
    def __init__(self, n, vocab, max_len):
        g = torch.Generator().manual_seed(31)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(max_len // 3, max_len + 1, (1,), generator=g))
            ids = torch.randint(5, vocab, (length,), generator=g)
            tags = torch.where(ids % 7 == 0, ids % len(LABELS), torch.zeros_like(ids))
            subword = torch.rand(length, generator=g) < 0.3
            tags[subword] = IGNORE
            tags[0] = tags[-1] = IGNORE
            self.items.append((ids, tags))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    longest = max(len(ids) for ids, _ in items)
    ids = torch.zeros(len(items), longest, dtype=torch.long)
    tags = torch.full((len(items), longest), IGNORE)
    for row, (i, t) in enumerate(items):
        ids[row, : len(i)] = i
        tags[row, : len(t)] = t
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": tags}


class Tagger(nn.Module):
    def __init__(self, config, class_weight):
        super().__init__()
        self.encoder = ElectraModel(config)
        self.mix = nn.Parameter(torch.zeros(4))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.GELU(),
            nn.Linear(config.hidden_size, len(LABELS)),
        )
        self.register_buffer("class_weight", class_weight)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True
        ).hidden_states
        w = self.mix.softmax(0)
        h = sum(w[i] * hidden[-1 - i] for i in range(len(self.mix)))
        logits = self.head(self.dropout(h))
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), weight=self.class_weight, ignore_index=IGNORE
        )
        return loss, logits


def main():
    torch.manual_seed(17)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, max_len, vocab, steps = (4, 24, 200, 10) if SMALL else (40, 256, 21128, 11)
    data = Sentences(batch * steps - batch // 2, vocab, max_len)  # the last batch is short
    counts = torch.zeros(len(LABELS))
    for _, tags in data.items:
        counts += torch.bincount(tags[tags != IGNORE], minlength=len(LABELS)).float()
    weight = (counts.sum() / counts.clamp(min=1)).sqrt()
    config = ElectraConfig(
        vocab_size=vocab,
        embedding_size=16 if SMALL else 128,
        hidden_size=32 if SMALL else 768,
        num_hidden_layers=4 if SMALL else 12,
        num_attention_heads=4 if SMALL else 12,
        intermediate_size=64 if SMALL else 3072,
        max_position_embeddings=max_len,
    )
    model = Tagger(config, weight / weight.mean()).to(device)
    slow = list(model.encoder.parameters())
    fast = [model.mix, *model.head.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": slow, "lr": 5e-5}, {"params": fast, "lr": 1e-3}], weight_decay=0.01
    )
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 20)
    loader = DataLoader(data, batch_size=batch, shuffle=True, collate_fn=collate)
    model.train()
    for step, batch in enumerate(loader):
        batch = {k: v.to(device) for k, v in batch.items()}
        loss, logits = model(**batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            known = batch["labels"] != IGNORE
            acc = (logits.argmax(-1) == batch["labels"])[known].float().mean()
        print(f"step {step} loss {loss.item():.8f} acc {acc.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
