"""Extractive question answering: an ALBERT student learns from labels and a frozen BERT teacher.

The passages have different lengths, every batch is padded to its own longest one.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AlbertConfig, AlbertModel, BertConfig, BertForQuestionAnswering

USE_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if USE_GPU else "cpu")
MAX_LEN = 384 if USE_GPU else 40
BATCH = 24 if USE_GPU else 3
VOCAB = 20000 if USE_GPU else 150
WIDTH, HEADS = (768, 12) if USE_GPU else (32, 2)
LAYERS = 12 if USE_GPU else 2
STEPS = 12 if USE_GPU else 4
TEMPERATURE = 2.0


def make_example(rng):
    length = int(torch.randint(MAX_LEN * 2 // 3, MAX_LEN + 1, (1,), generator=rng))
    question = int(torch.randint(5, 15, (1,), generator=rng))
    ids = torch.randint(5, VOCAB, (length,), generator=rng)
    start = int(torch.randint(question, length - 4, (1,), generator=rng))
    end = start + int(torch.randint(0, 4, (1,), generator=rng))
    ids[start], ids[end] = 3, 4  # markers, so that there is something to learn
    segment = (torch.arange(length) >= question).long()
    return ids, segment, start, end


def collate(rows):
    ids, segments, start, end = zip(*rows, strict=True)
    lengths = torch.tensor([len(r) for r in ids])
    padded = pad_sequence(ids, batch_first=True)
    mask = torch.arange(padded.shape[1])[None] < lengths[:, None]
    return {
        "input_ids": padded,
        "token_type_ids": pad_sequence(segments, batch_first=True),
        "attention_mask": mask.long(),
    }, torch.tensor([start, end])


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = AlbertConfig(
            vocab_size=VOCAB,
            embedding_size=128 if USE_GPU else 16,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH,
            hidden_act="gelu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=512,
        )
        self.encoder = AlbertModel(cfg, add_pooling_layer=False)
        self.span = nn.Linear(WIDTH, 2)

    def forward(self, **batch):
        h = self.encoder(**batch).last_hidden_state
        logits = self.span(h).masked_fill(batch["attention_mask"][..., None] == 0, -1e4)
        return logits.unbind(-1)


torch.manual_seed(33)
teacher = BertForQuestionAnswering(
    BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS // 2,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
    )
)
teacher.eval().requires_grad_(False).to(DEVICE)
student = Student().to(DEVICE).train()

rng = torch.Generator().manual_seed(34)
train = [make_example(rng) for _ in range(BATCH * STEPS)]
loader = DataLoader(train, batch_size=BATCH, collate_fn=collate, pin_memory=USE_GPU)
optimizer = torch.optim.NAdam(student.parameters(), lr=2e-4)
warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4))


def kl(s, t):
    s = F.log_softmax(s / TEMPERATURE, -1)
    return F.kl_div(s, F.softmax(t / TEMPERATURE, -1), reduction="batchmean") * TEMPERATURE**2


for it, (batch, span) in enumerate(loader):
    batch = {k: v.to(DEVICE, non_blocking=True) for k, v in batch.items()}
    span = span.to(DEVICE)
    with torch.no_grad():
        t = teacher(**batch)
    hide = batch["attention_mask"] == 0
    s_start, s_end = student(**batch)
    hard = F.cross_entropy(s_start, span[0]) + F.cross_entropy(s_end, span[1])
    soft = kl(s_start, t.start_logits.masked_fill(hide, -1e4))
    soft = soft + kl(s_end, t.end_logits.masked_fill(hide, -1e4))
    loss = 0.7 * hard + 0.3 * soft
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    warm.step()
    width = batch["input_ids"].shape[1]
    print(f"iter {it} width {width} loss {loss.item():.6f} hard {hard.item():.4f}", flush=True)
