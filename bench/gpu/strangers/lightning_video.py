"""Action recognition on clips: a small SlowFast-like net of 3D convolutions without batch norm, a
DataModule, accumulation and clipping by the Trainer, an EMA callback.
"""

# tiny: --batch 2 --frames 8 --side 32 --width 4
import argparse
import copy
import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, n, frames, side):
        self.n, self.frames, self.side = n, frames, side

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(100 + i)
        first = torch.randn(3, self.side, self.side, generator=g)
        return {
            "video": torch.stack([first.roll(t * (i % 13 - 6), -1) for t in range(self.frames)], 1),
            "label": i % 13,
        }


class ClipData(L.LightningDataModule):
    def __init__(self, batch, frames, side):
        super().__init__()
        self.batch, self.frames, self.side = batch, frames, side

    def setup(self, stage):
        self.train = Clips(40 * self.batch, self.frames, self.side)
        self.val = Clips(4 * self.batch, self.frames, self.side)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch * 2)


class Bottleneck3d(nn.Module):
    def __init__(self, c, k):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv3d(c, c, (k, 1, 1), padding=(k // 2, 0, 0)),
            nn.Conv3d(c, c, (1, 3, 3), padding=(0, 1, 1)),
            nn.Conv3d(c, c, 1),
        )
        self.n1, self.n2 = nn.GroupNorm(2, c), nn.GroupNorm(2, c)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.n1(self.a(x)))
        y = self.act(self.n2(self.b(y)))
        return self.act(x + self.c(y))


class SlowFast(nn.Module):
    def __init__(self, w, classes):
        super().__init__()
        self.slow_stem, self.fast_stem = (
            nn.Conv3d(3, w, (1, 5, 5), (1, 2, 2), (0, 2, 2)),
            nn.Conv3d(3, w // 2, (5, 5, 5), (1, 2, 2), (2, 2, 2)),
        )
        self.slow, self.fast = (
            nn.ModuleList([Bottleneck3d(w, 1) for _ in range(4)]),
            nn.ModuleList([Bottleneck3d(w // 2, 3) for _ in range(4)]),
        )
        self.lateral = nn.ModuleList(
            [nn.Conv3d(w // 2, w, (5, 1, 1), (4, 1, 1), (2, 0, 0)) for _ in range(4)]
        )
        self.fc = nn.Linear(w + w // 2, classes)

    def forward(self, pathways):
        slow, fast = pathways
        slow, fast = self.slow_stem(slow), self.fast_stem(fast)
        for s, f, l in zip(self.slow, self.fast, self.lateral):
            slow, fast = s(slow + l(fast)), f(fast)
        return self.fc(torch.cat([slow.mean((2, 3, 4)), fast.mean((2, 3, 4))], 1))


class EMA(L.Callback):
    def __init__(self, decay=0.99):
        self.decay = decay

    def on_fit_start(self, trainer, module):
        self.shadow = copy.deepcopy(module.net).requires_grad_(False)

    def on_before_zero_grad(self, trainer, module, optimizer):
        for s, p in zip(self.shadow.parameters(), module.net.parameters()):
            s.lerp_(p.detach(), 1 - self.decay)


class ActionModule(L.LightningModule):
    def __init__(self, width, lr=2e-3):
        super().__init__()
        self.net = SlowFast(width, 13)
        self.lr, self.seen, self.n = lr, [], 0
        self.loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, video):
        return self.net([video[:, :, ::4], video])

    def training_step(self, batch, batch_idx):
        loss = self.loss_fn(self(batch["video"]), batch["label"])
        self.seen.append(loss.item())
        return {"loss": loss}

    def on_before_optimizer_step(self, optimizer):
        print("step %d loss %.6f" % (self.n, sum(self.seen) / len(self.seen)), flush=True)
        self.n, self.seen = self.n + 1, []

    def validation_step(self, batch, batch_idx):
        self.log("val_acc", (self(batch["video"]).argmax(1) == batch["label"]).float().mean())

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, nesterov=True)
        return [opt], [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--frames", type=int, default=32)
    ap.add_argument("--side", type=int, default=112)
    ap.add_argument("--width", type=int, default=32)
    args = ap.parse_args()
    L.seed_everything(7, verbose=False)
    trainer = L.Trainer(
        max_steps=20,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[EMA()],
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=True,
        default_root_dir=os.environ.get("FIT_OUT", "."),
        limit_val_batches=2,
    )
    trainer.fit(ActionModule(args.width), datamodule=ClipData(args.batch, args.frames, args.side))
