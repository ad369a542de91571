"""Depth, normals and semantics from one ConvNeXt-like network. Homoscedastic uncertainty weights
have an optimizer of their own, stepped every second batch: Lightning, manual optimisation."""

import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL", "0") == "1"
CLASSES, VOID = 13, 255


class Rooms(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(500 + i)
        s = self.size
        depth = torch.rand(1, s // 16, s // 16, generator=g) * 4 + 0.5
        depth = depth.repeat_interleave(16, 1).repeat_interleave(16, 2)
        label = (depth[0] * 3).long() % CLASSES
        normal = F.normalize(torch.randn(3, s // 16, s // 16, generator=g), dim=0)
        normal = normal.repeat_interleave(16, 1).repeat_interleave(16, 2)
        image = torch.cat([depth / 4, normal[:2]]) + 0.1 * torch.randn(3, s, s, generator=g)
        label[torch.rand(s, s, generator=g) < 0.1] = VOID
        depth[torch.rand(1, s, s, generator=g) < 0.2] = 0  # no measurement
        return image, depth, normal, label


class Norm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dw, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.gamma = nn.Parameter(torch.full((c,), 0.1))

    def forward(self, x):
        h = self.norm(self.dw(x).permute(0, 2, 3, 1))
        h = self.gamma * self.down(F.gelu(self.up(h)))
        return x + h.permute(0, 3, 1, 2)


class Dense(nn.Module):
    def __init__(self, widths, depths):
        super().__init__()
        self.stages, c = nn.ModuleList(), 3
        for k, (w, d) in enumerate(zip(widths, depths)):
            s = 4 if k == 0 else 2
            self.stages.append(
                nn.Sequential(nn.Conv2d(c, w, s, s), Norm(w), *(Block(w) for _ in range(d)))
            )
            c = w
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 2, 2) for a, b in zip(widths[:0:-1], widths[-2::-1])
        )
        self.fuse = nn.ModuleList(Block(w) for w in widths[-2::-1])
        self.heads = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(widths[0], 64, 3, padding=1), nn.GELU(), nn.Conv2d(64, o * 16, 1)
            )
            for o in (1, 3, CLASSES)
        )

    def forward(self, x):
        feats = []
        for stage in self.stages:
            x = stage(x)
            feats.append(x)
        for up, fuse, skip in zip(self.ups, self.fuse, feats[-2::-1]):
            x = fuse(up(x) + skip)
        return [F.pixel_shuffle(h(x), 4) for h in self.heads]


class MultiTask(L.LightningModule):
    def __init__(self, widths, depths):
        super().__init__()
        self.automatic_optimization = False
        self.net = Dense(widths, depths)
        self.log_var = nn.Parameter(torch.zeros(3))

    def losses(self, batch):
        image, depth, normal, label = batch
        d, n, s = self.net(image)
        seen = depth > 0
        depth_loss = ((d - depth).abs() * seen).sum() / seen.sum()
        normal_loss = (1 - F.cosine_similarity(n, normal, dim=1)).mean()
        logits = s.permute(0, 2, 3, 1).reshape(-1, CLASSES)
        sem_loss = F.cross_entropy(logits, label.reshape(-1), ignore_index=VOID)
        return torch.stack([depth_loss, normal_loss, sem_loss])

    def training_step(self, batch, batch_idx):
        opt_net, opt_w = self.optimizers()
        parts = self.losses(batch)
        loss = (torch.exp(-self.log_var) * parts + 0.5 * self.log_var).sum()
        opt_net.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(opt_net, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        opt_net.step()
        if batch_idx % 2 == 1:
            opt_w.step()
            opt_w.zero_grad()
        self.lr_schedulers().step()
        print(f"step {batch_idx} loss {loss.item():.8f} parts {parts.sum().item():.6f}", flush=True)

    def configure_optimizers(self):
        net = torch.optim.AdamW(self.net.parameters(), lr=4e-4, weight_decay=0.05)
        weights = torch.optim.SGD([self.log_var], lr=0.05, momentum=0.9)
        return [net, weights], [torch.optim.lr_scheduler.ExponentialLR(net, 0.95)]


if __name__ == "__main__":
    L.seed_everything(27, workers=True)
    torch.backends.cudnn.deterministic = True
    size, bs = (32, 2) if SMALL else (256, 28)
    widths, depths = ([8, 16], [1, 1]) if SMALL else ([128, 256, 512], [3, 3, 6])
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(MultiTask(widths, depths), DataLoader(Rooms(bs * 10, size), batch_size=bs))
