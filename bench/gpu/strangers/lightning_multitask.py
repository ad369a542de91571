# Lightning: a module that calls its own parts (encoder, two heads) in training_step, two losses
# summed, validation, accumulate_grad_batches, logging. tiny: --dim 24 --depth 2 --batch 6 --length
# 12 --cpu --steps 4
import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--dim", type=int, default=512)
parser.add_argument("--depth", type=int, default=8)
parser.add_argument("--batch", type=int, default=96)
parser.add_argument("--length", type=int, default=256)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
L.seed_everything(3, verbose=False)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, args.dim)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(args.dim, 4, 4 * args.dim, 0.0, batch_first=True)
                for _ in range(args.depth)
            ]
        )

    def forward(self, x, padding):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=padding)
        return h


class MultiTask(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.tagger = nn.Sequential(
            nn.Linear(args.dim, args.dim), nn.Tanh(), nn.Linear(args.dim, 30)
        )
        self.regressor = nn.Linear(args.dim, 1)

    def forward(self, x, padding):
        h = self.encoder(x, padding)
        return self.tagger(h), self.regressor(h[:, 0]).squeeze(-1)

    def shared(self, batch):
        x, tags, score = batch
        tag_logits, value = self(x, x == 0)
        a = F.cross_entropy(tag_logits.transpose(1, 2), tags, ignore_index=-1)
        return a + 0.5 * F.smooth_l1_loss(value, score), a

    def training_step(self, batch, i):
        loss, a = self.shared(batch)
        self.log("train/tag", a)
        print(
            "step %d loss %.9g" % (self.trainer.fit_loop.total_batch_idx, loss.item()), flush=True
        )
        return {"loss": loss, "tag": a.detach()}

    def validation_step(self, batch, i):
        self.log("val/loss", self.shared(batch)[0])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.OneCycleLR(
                    optimizer, 2e-5, total_steps=args.steps + 1
                ),
                "interval": "step",
            },
        }


def data(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(1, 1000, (count, args.length), generator=g)
    for i in range(count):
        x[i, args.length - i % (args.length // 2) :] = 0
    tags = torch.where(x == 0, -1, x % 30)
    return TensorDataset(x, tags, torch.rand(count, generator=g))


trainer = L.Trainer(
    max_steps=args.steps,
    accelerator="cpu" if args.cpu else "gpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=0.5,
    val_check_interval=10 if args.steps > 10 else None,
    num_sanity_val_steps=1,
)
trainer.fit(
    MultiTask(),
    DataLoader(data(args.batch * args.steps, 1), args.batch, shuffle=True),
    DataLoader(data(2 * args.batch, 2), 2 * args.batch),
)
