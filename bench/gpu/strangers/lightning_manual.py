"""Retrieval with two towers in Lightning and manual optimization: one optimizer a tower, a queue of
negatives from earlier batches, scheduler and clipping by hand.
"""

# tiny: --batch 4 --dim 16 --tokens 12 --layers 1 --queue 16
import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset


class Clicks(IterableDataset):
    def __init__(self, n, tokens):
        self.n, self.tokens = n, tokens

    def __iter__(self):
        g = torch.Generator().manual_seed(8)
        for _ in range(self.n):
            yield (
                torch.randint(1, 5000, (self.tokens // 4,), generator=g),
                torch.randint(1, 5000, (self.tokens,), generator=g),
            )


class Tower(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.emb = nn.Embedding(5000, dim, padding_idx=0)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(dim, max(1, dim // 64), dim * 4, 0.0, batch_first=True)
                for _ in range(layers)
            ]
        )
        self.proj = nn.Linear(dim, 64)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.proj(x.mean(1)), dim=-1)


class TwoTowers(L.LightningModule):
    def __init__(self, dim, layers, queue):
        super().__init__()
        self.automatic_optimization = False
        self.query, self.doc = Tower(dim, layers // 2 or 1), Tower(dim, layers)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("queue", F.normalize(torch.randn(queue, 64), dim=-1))

    def training_step(self, batch, i):
        opt_q, opt_d = self.optimizers()
        q, d = self.query(batch[0]), self.doc(batch[1])
        logits = self.scale.exp() * torch.cat([q @ d.t(), q @ self.queue.t()], 1)
        loss = F.cross_entropy(logits, torch.arange(len(q), device=self.device))
        opt_q.zero_grad()
        opt_d.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(opt_q, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        self.clip_gradients(opt_d, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        opt_q.step()
        opt_d.step()
        self.lr_schedulers()[0].step()
        self.queue = torch.cat([d.detach(), self.queue])[: len(self.queue)]
        print("step %d loss %.6f" % (i, loss.item()), flush=True)

    def configure_optimizers(self):
        a = torch.optim.Adam(list(self.query.parameters()) + [self.scale], lr=1e-4)
        b = torch.optim.Adam(self.doc.parameters(), lr=5e-5)
        return [a, b], [
            torch.optim.lr_scheduler.StepLR(a, 5, 0.8),
            torch.optim.lr_scheduler.StepLR(b, 5, 0.8),
        ]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--dim", type=int, default=384)
    ap.add_argument("--tokens", type=int, default=256)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--queue", type=int, default=2048)
    a = ap.parse_args()
    L.seed_everything(5, verbose=False)
    L.Trainer(
        max_epochs=1,
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    ).fit(TwoTowers(a.dim, a.layers, a.queue), DataLoader(Clicks(20 * a.batch, a.tokens), a.batch))
