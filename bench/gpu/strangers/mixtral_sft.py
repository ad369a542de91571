"""Supervised fine-tuning of a Mixtral from a config: the router's balance is part of the returned
loss, prompts are ignored, rows are of very different lengths.
"""

# tiny: --hidden 32 --layers 2 --vocab 128 --batch 6 --longest 32
import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    get_cosine_schedule_with_warmup,
    set_seed,
)


class Chats(Dataset):
    def __init__(self, n, longest, vocab):
        self.n, self.longest, self.vocab = n, longest, vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        length = int(torch.randint(self.longest // 4, self.longest + 1, (1,), generator=g))
        ids = torch.randint(3, self.vocab, (length,), generator=g)
        prompt = length // (2 + i % 5)
        return ids, torch.cat([torch.full((prompt,), -100), ids[prompt:]])


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    batch = {
        "input_ids": torch.zeros(len(rows), longest, dtype=torch.long),
        "attention_mask": torch.zeros(len(rows), longest, dtype=torch.long),
        "labels": torch.full((len(rows), longest), -100),
    }
    for i, (ids, labels) in enumerate(rows):
        (
            batch["input_ids"][i, : len(ids)],
            batch["attention_mask"][i, : len(ids)],
            batch["labels"][i, : len(ids)],
        ) = ids, 1, labels
    return batch


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=512)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--vocab", type=int, default=16000)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--longest", type=int, default=512)
    p.add_argument("--experts", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-4)
    args = p.parse_args()
    set_seed(17)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    h = args.hidden
    config = MixtralConfig(
        vocab_size=args.vocab,
        hidden_size=h,
        intermediate_size=2 * h,
        num_hidden_layers=args.layers,
        num_attention_heads=max(2, h // 64),
        num_key_value_heads=2,
        num_local_experts=args.experts,
        num_experts_per_tok=2,
        output_router_logits=True,
        router_aux_loss_coef=0.02,
        max_position_embeddings=args.longest,
        use_cache=False,
    )
    model = MixtralForCausalLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 3, 20)
    for step, batch in enumerate(
        DataLoader(
            Chats(20 * args.batch, args.longest, args.vocab),
            args.batch,
            shuffle=True,
            collate_fn=collate,
        )
    ):
        out = model(**{k: v.to(device) for k, v in batch.items()})
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"step {step} loss {out.loss.item():.6f} aux {out.aux_loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
