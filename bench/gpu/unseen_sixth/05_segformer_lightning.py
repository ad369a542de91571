"""SegFormer semantic segmentation as a LightningModule / DataModule."""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset
from transformers import SegformerConfig, SegformerForSemanticSegmentation

CUDA = torch.cuda.is_available()
torch.set_float32_matmul_precision("high")

NUM_CLASSES = 150 if CUDA else 5
CROP = 512 if CUDA else 64
BS = 6 if CUDA else 2


class SyntheticScenes(Dataset):
    """blobs of colour; the class map is a coarse random grid blown up to the crop size"""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed
        g = torch.Generator().manual_seed(0)
        self.palette = torch.randn(NUM_CLASSES, 3, generator=g)

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(self.seed * 10007 + idx)
        coarse = torch.randint(0, NUM_CLASSES, (1, 1, 8, 8), generator=g)
        mask = F.interpolate(coarse.float(), size=(CROP, CROP), mode="nearest")[0, 0].long()
        image = self.palette[mask].permute(2, 0, 1) + 0.3 * torch.randn(3, CROP, CROP, generator=g)
        mask[:4] = 255  # void border
        return {"pixel_values": image.contiguous(), "labels": mask}


class SceneData(L.LightningDataModule):
    def __init__(self, batch_size, n_train, n_val):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        self.train_set = SyntheticScenes(self.hparams.n_train, seed=1)
        self.val_set = SyntheticScenes(self.hparams.n_val, seed=2)

    def train_dataloader(self):
        return DataLoader(
            self.train_set,
            batch_size=self.hparams.batch_size,
            shuffle=False,
            num_workers=2 if CUDA else 0,
            pin_memory=CUDA,
        )

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.hparams.batch_size)


class SegFormerModule(L.LightningModule):
    def __init__(self, lr=6e-5, head_mult=10.0, max_steps=10):
        super().__init__()
        self.save_hyperparameters()
        small = dict(
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 16, 16, 32],
            decoder_hidden_size=32,
            num_attention_heads=[1, 1, 2, 2],
        )
        b1 = dict(
            depths=[2, 2, 2, 2],
            hidden_sizes=[64, 128, 320, 512],
            decoder_hidden_size=256,
            num_attention_heads=[1, 2, 5, 8],
        )
        cfg = SegformerConfig(
            num_labels=NUM_CLASSES,
            drop_path_rate=0.0,
            classifier_dropout_prob=0.0,
            semantic_loss_ignore_index=255,
            **(b1 if CUDA else small),
        )
        self.net = SegformerForSemanticSegmentation(cfg)
        self.register_buffer("conf", torch.zeros(NUM_CLASSES, NUM_CLASSES), persistent=False)

    def training_step(self, batch, batch_idx):
        out = self.net(pixel_values=batch["pixel_values"], labels=batch["labels"])
        self.log("train/loss", out.loss, on_step=True)
        return out.loss

    def validation_step(self, batch, batch_idx):
        logits = self.net(pixel_values=batch["pixel_values"]).logits
        up = F.interpolate(
            logits.float(), size=batch["labels"].shape[-2:], mode="bilinear", align_corners=False
        )
        pred, lab = up.argmax(1), batch["labels"]
        keep = lab != 255
        idx = lab[keep] * NUM_CLASSES + pred[keep]
        self.conf += torch.bincount(idx, minlength=NUM_CLASSES**2).view_as(self.conf)

    def on_validation_epoch_end(self):
        inter = self.conf.diag()
        union = self.conf.sum(0) + self.conf.sum(1) - inter
        self.log("val/miou", (inter / union.clamp(min=1)).mean())
        self.conf.zero_()

    def configure_optimizers(self):
        head = list(self.net.decode_head.parameters())
        body = list(self.net.segformer.parameters())
        opt = torch.optim.AdamW(
            [
                {"params": body, "lr": self.hparams.lr},
                {"params": head, "lr": self.hparams.lr * self.hparams.head_mult},
            ],
            weight_decay=0.01,
        )
        poly = torch.optim.lr_scheduler.PolynomialLR(
            opt, total_iters=self.hparams.max_steps, power=1.0
        )
        return {"optimizer": opt, "lr_scheduler": {"scheduler": poly, "interval": "step"}}


class LossPrinter(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step} loss {outputs['loss'].item():.8f}", flush=True)

    def on_validation_end(self, trainer, pl_module):
        m = trainer.callback_metrics.get("val/miou")
        if m is not None:
            print(f"epoch {trainer.current_epoch} miou {m.item():.5f}", flush=True)


if __name__ == "__main__":
    L.seed_everything(17)
    steps_per_epoch, epochs = (4, 2) if CUDA else (2, 1)
    dm = SceneData(BS, BS * steps_per_epoch, BS)
    model = SegFormerModule(max_steps=steps_per_epoch * epochs)
    with tempfile.TemporaryDirectory() as tmp:
        trainer = L.Trainer(
            accelerator="gpu" if CUDA else "cpu",
            devices=1,
            max_epochs=epochs,
            precision="bf16-mixed" if CUDA else "32-true",
            gradient_clip_val=1.0,
            default_root_dir=tmp,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            callbacks=[LossPrinter(), ModelCheckpoint(dirpath=tmp, save_weights_only=True)],
        )
        trainer.fit(model, dm)
