"""Masked autoencoder in Lightning: the mask is drawn inside the model, rows are shuffled with
gather, the loss is returned with what is needed to plot it.
"""

# tiny: --batch 4 --image 32 --dim 32 --depth 2
import argparse
import os

import lightning.pytorch as pl
import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(
            nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        )
        return x + self.mlp(self.norm2(x))


class MAE(nn.Module):
    def __init__(self, image, dim, depth, patch=8, mask_ratio=0.6):
        super().__init__()
        self.patch, self.mask_ratio, n = patch, mask_ratio, (image // patch) ** 2
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.pos, self.dec_pos = (
            nn.Parameter(torch.randn(1, n, dim) * 0.02),
            nn.Parameter(torch.randn(1, n, dim // 2) * 0.02),
        )
        heads = max(1, dim // 64)
        self.encoder = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm, self.to_dec = nn.LayerNorm(dim), nn.Linear(dim, dim // 2)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim // 2))
        self.decoder = nn.Sequential(
            *[Block(dim // 2, heads) for _ in range(depth // 2)],
            nn.LayerNorm(dim // 2),
            nn.Linear(dim // 2, patch * patch * 3),
        )

    def patchify(self, x):
        b, c, h, w = x.shape
        p = self.patch
        return (
            x.view(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, p * p * 3)
        )

    def forward(self, imgs):
        x = self.embed(imgs).flatten(2).transpose(1, 2) + self.pos
        b, n, d = x.shape
        keep = int(n * (1 - self.mask_ratio))
        shuffle = torch.rand(b, n, device=x.device).argsort(1)
        restore = shuffle.argsort(1)
        x = x.gather(1, shuffle[:, :keep, None].expand(-1, -1, d))
        for blk in self.encoder:
            x = blk(x)
        x = self.to_dec(self.norm(x))
        x = torch.cat([x, self.mask_token.expand(b, n - keep, -1)], 1).gather(
            1, restore[..., None].expand(-1, -1, d // 2)
        )
        pred = self.decoder(x + self.dec_pos)
        mask = (restore >= keep).float()
        target = self.patchify(imgs)
        target = (target - target.mean(-1, keepdim=True)) / (
            target.var(-1, keepdim=True) + 1e-6
        ).sqrt()
        loss = (((pred - target) ** 2).mean(-1) * mask).sum() / mask.sum()
        return loss, pred, mask


class Pretrain(pl.LightningModule):
    def __init__(self, image, dim, depth):
        super().__init__()
        self.model = MAE(image, dim, depth)

    def training_step(self, batch, _):
        loss, _, _ = self.model(batch)
        self.log("loss", loss)
        print(f"step {self.global_step} loss {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05)
        return {
            "optimizer": opt,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 5)),
                "interval": "step",
            },
        }


class Images(torch.utils.data.Dataset):
    def __init__(self, n, side):
        self.n, self.side = n, side

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return (
            torch.randn(3, self.side, self.side, generator=torch.Generator().manual_seed(i)).cumsum(
                -1
            )
            * 0.1
        )


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--image", type=int, default=160)
    ap.add_argument("--dim", type=int, default=512)
    ap.add_argument("--depth", type=int, default=8)
    a = ap.parse_args()
    pl.seed_everything(0, verbose=False)
    data = torch.utils.data.DataLoader(
        Images(20 * a.batch, a.image), batch_size=a.batch, shuffle=True, drop_last=True
    )
    pl.Trainer(
        max_steps=20,
        devices=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=os.environ.get("FIT_OUT", "."),
    ).fit(Pretrain(a.image, a.dim, a.depth), data)
