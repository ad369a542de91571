"""Lightning with accumulation over three batches, clipping, a schedule by step and validation in
the middle of an epoch: text classification by a small transformer."""

# tiny: --dim 16 --layers 2 --batch 4 --length 10
import argparse

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--dim", type=int, default=384)
p.add_argument("--layers", type=int, default=6)
p.add_argument("--batch", type=int, default=96)
p.add_argument("--length", type=int, default=256)
a = p.parse_args()


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(5000, a.dim)
        layer = nn.TransformerEncoderLayer(
            a.dim, 4, 4 * a.dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, a.layers, enable_nested_tensor=False)
        self.head = nn.Linear(a.dim, 20)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)).mean(1))

    def training_step(self, batch, i):
        ids, labels = batch
        loss = nn.functional.cross_entropy(self(ids), labels)
        self.log("train", loss)
        print("step %d loss %.9g" % (i, loss.item()), flush=True)
        return loss

    def validation_step(self, batch, i):
        ids, labels = batch
        self.log("val", nn.functional.cross_entropy(self(ids), labels))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), 2e-4)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-4, total_steps=10)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


L.seed_everything(4, verbose=False)
g = torch.Generator().manual_seed(1)


def data(n):
    ids = torch.randint(0, 5000, (n * a.batch, a.length), generator=g)
    return TensorDataset(ids, torch.randint(0, 20, (n * a.batch,), generator=g))


L.Trainer(
    max_epochs=1,
    accumulate_grad_batches=3,
    gradient_clip_val=0.5,
    val_check_interval=6,
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Classifier(), DataLoader(data(15), a.batch), DataLoader(data(2), a.batch))
