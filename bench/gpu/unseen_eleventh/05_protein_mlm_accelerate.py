"""Masked language model of protein sequences (ESM) with accelerate and ragged batches."""

import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import EsmConfig, EsmForMaskedLM, get_linear_schedule_with_warmup

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
batch_size = 48 if large else 4
longest = 512 if large else 60
amino = "ACDEFGHIKLMNPQRSTVWY"
PAD, CLS, EOS, MASK, FIRST = 0, 1, 2, 3, 4
vocab = FIRST + len(amino)


def make_proteins(n, seed):
    """Families of proteins: a family is a list of motifs, joined by random linkers."""
    rng = random.Random(seed)
    motifs = ["".join(rng.choice(amino) for _ in range(12)) for _ in range(20)]
    families = [[rng.randrange(20) for _ in range(longest // 16)] for _ in range(6)]
    proteins = []
    for _ in range(n):
        family = rng.choice(families)
        used = family[: rng.randint(len(family) // 2, len(family))]
        parts = []
        for m in used:
            parts.append("".join(rng.choice(amino) if rng.random() < 0.1 else a for a in motifs[m]))
            parts.append(rng.choice(["", "GS", "GGS", "P"]))
        proteins.append("".join(parts)[: longest - 2])
    return proteins


def collate(proteins):
    length = max(len(p) for p in proteins) + 2
    ids = torch.full((len(proteins), length), PAD)
    for row, protein in enumerate(proteins):
        tokens = [CLS] + [FIRST + amino.index(a) for a in protein] + [EOS]
        ids[row, : len(tokens)] = torch.tensor(tokens)
    labels = ids.clone()
    chosen = (torch.rand(ids.shape) < 0.15) & (ids >= FIRST)
    labels[~chosen] = -100
    how = torch.rand(ids.shape)
    inputs = torch.where(chosen & (how < 0.8), MASK, ids)
    swapped = torch.randint(FIRST, vocab, ids.shape)
    inputs = torch.where(chosen & (how > 0.9), swapped, inputs)
    return {"input_ids": inputs, "attention_mask": (ids != PAD).long(), "labels": labels}


def main():
    set_seed(13)
    accelerator = Accelerator(
        mixed_precision="bf16" if large else "no", gradient_accumulation_steps=2
    )
    config = EsmConfig(
        vocab_size=vocab,
        hidden_size=480 if large else 48,
        num_hidden_layers=12 if large else 2,
        num_attention_heads=12 if large else 4,
        intermediate_size=1920 if large else 96,
        position_embedding_type="rotary",
        max_position_embeddings=1026,
        token_dropout=True,
        mask_token_id=MASK,
        pad_token_id=PAD,
        emb_layer_norm_before=True,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = EsmForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    loader = DataLoader(
        make_proteins(batch_size * 20, 1), batch_size=batch_size, shuffle=True, collate_fn=collate
    )
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 12)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    step, running = 0, []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        running.append(loss.item())
        if accelerator.sync_gradients:
            step += 1
            accelerator.print(f"step {step} loss {sum(running) / len(running):.6f}")
            running = []


if __name__ == "__main__":
    main()
