# Pairwise (Bradley-Terry) reward model on a Qwen2 backbone.
# chosen and rejected go through the model as one concatenated batch.
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen2Config, Qwen2Model

CUDA = torch.cuda.is_available()


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--pairs_per_batch", type=int, default=8 if CUDA else 2)
    p.add_argument("--max_length", type=int, default=768 if CUDA else 16)
    p.add_argument("--dim", type=int, default=768 if CUDA else 32)
    p.add_argument("--depth", type=int, default=10 if CUDA else 2)
    p.add_argument("--vocab", type=int, default=20000 if CUDA else 100)
    p.add_argument("--lr", type=float, default=1e-5)
    p.add_argument("--train_steps", type=int, default=8 if CUDA else 3)
    p.add_argument("--eval_batches", type=int, default=2)
    p.add_argument("--margin", type=float, default=0.0)
    p.add_argument("--center_coef", type=float, default=0.01)
    p.add_argument("--seed", type=int, default=7)
    return p.parse_args()


class PreferenceDataset(Dataset):
    """chosen replies carry more of the 'good' tokens (lower half of the vocabulary)"""

    def __init__(self, size, vocab, max_length, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(size):
            lens = torch.randint(max_length // 2, max_length + 1, (2,), generator=g).tolist()
            good = torch.randint(1, int(vocab * 0.6), (lens[0],), generator=g)
            bad = torch.randint(int(vocab * 0.4), vocab, (lens[1],), generator=g)
            self.rows.append((good, bad))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        return self.rows[idx]


def collate(rows):
    seqs = [r[0] for r in rows] + [r[1] for r in rows]
    width = max(len(s) for s in seqs)
    ids = torch.zeros(len(seqs), width, dtype=torch.long)
    mask = torch.zeros(len(seqs), width, dtype=torch.long)
    for i, s in enumerate(seqs):
        ids[i, : len(s)] = s
        mask[i, : len(s)] = 1
    return ids, mask


class RewardModel(nn.Module):
    def __init__(self, a):
        super().__init__()
        cfg = Qwen2Config(
            vocab_size=a.vocab,
            hidden_size=a.dim,
            num_hidden_layers=a.depth,
            num_attention_heads=max(2, a.dim // 64),
            num_key_value_heads=max(2, a.dim // 64) // 2,
            intermediate_size=a.dim * 3,
            max_position_embeddings=2048,
            use_cache=False,
        )
        self.backbone = Qwen2Model(cfg)
        self.v_head = nn.Linear(a.dim, 1, bias=False)
        nn.init.normal_(self.v_head.weight, std=1.0 / (a.dim + 1) ** 0.5)

    def forward(self, ids, mask):
        h = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        last = mask.sum(1) - 1
        pooled = h[torch.arange(h.size(0), device=h.device), last]
        return self.v_head(pooled).squeeze(-1)


class RewardTrainer:
    def __init__(self, a):
        self.a = a
        self.device = "cuda" if CUDA else "cpu"
        self.model = RewardModel(a).to(self.device)
        decay = [p for n, p in self.model.named_parameters() if p.ndim >= 2]
        no_decay = [p for n, p in self.model.named_parameters() if p.ndim < 2]
        self.opt = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
            lr=a.lr,
            betas=(0.9, 0.95),
        )
        self.sched = torch.optim.lr_scheduler.LinearLR(
            self.opt, 1.0, 0.1, total_iters=a.train_steps
        )
        train = PreferenceDataset(a.pairs_per_batch * a.train_steps, a.vocab, a.max_length, a.seed)
        val = PreferenceDataset(
            a.pairs_per_batch * a.eval_batches, a.vocab, a.max_length, a.seed + 1
        )
        self.train_dl = DataLoader(
            train, a.pairs_per_batch, shuffle=False, collate_fn=collate, pin_memory=CUDA
        )
        self.val_dl = DataLoader(val, a.pairs_per_batch, collate_fn=collate)

    def loss_fn(self, ids, mask):
        with torch.autocast(self.device, dtype=torch.bfloat16):
            r = self.model(ids, mask)
        r = r.float()
        chosen, rejected = r.chunk(2)
        bt = -F.logsigmoid(chosen - rejected - self.a.margin).mean()
        center = self.a.center_coef * (chosen + rejected).pow(2).mean()
        return bt + center, (chosen > rejected).float().mean()

    def fit(self):
        for step, (ids, mask) in enumerate(self.train_dl):
            self.model.train()
            ids, mask = (
                ids.to(self.device, non_blocking=True),
                mask.to(self.device, non_blocking=True),
            )
            loss, acc = self.loss_fn(ids, mask)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            print(f"step {step} loss {loss.item():.8f} acc {acc.item():.3f}", flush=True)
            if (step + 1) % 4 == 0:
                self.evaluate()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        res = [
            torch.stack(self.loss_fn(i.to(self.device), m.to(self.device))) for i, m in self.val_dl
        ]
        l, acc = torch.stack(res).mean(0).tolist()
        print(f"  [eval] nll={l:.6f} acc={acc:.3f}", flush=True)


if __name__ == "__main__":
    a = get_args()
    torch.manual_seed(a.seed)
    t = RewardTrainer(a)
    t.fit()
    with tempfile.TemporaryDirectory() as d:
        torch.save(t.model.state_dict(), os.path.join(d, "rm.pt"))
