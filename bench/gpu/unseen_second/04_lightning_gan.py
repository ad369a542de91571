import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TINY = os.environ.get("TINY", "") not in ("", "0")


class FakeFaces(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        low = torch.randn(3, 8, 8, generator=g)
        img = F.interpolate(
            low[None], size=(self.size, self.size), mode="bilinear", align_corners=False
        )[0]
        return img.tanh()


class Generator(nn.Module):
    def __init__(self, z, ch, size):
        super().__init__()
        self.fc = nn.Linear(z, ch * 8 * 4 * 4)
        self.ch = ch
        blocks, c, s = [], ch * 8, 4
        while s < size:
            nxt = max(c // 2, ch)
            blocks += [
                nn.Upsample(scale_factor=2),
                nn.Conv2d(c, nxt, 3, padding=1, bias=False),
                nn.BatchNorm2d(nxt),
                nn.ReLU(True),
            ]
            c, s = nxt, s * 2
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, z):
        x = self.fc(z).view(z.size(0), self.ch * 8, 4, 4)
        return torch.tanh(self.out(self.blocks(x)))


class Discriminator(nn.Module):
    def __init__(self, ch):
        super().__init__()

        def block(i, o):
            return [
                nn.utils.parametrizations.spectral_norm(nn.Conv2d(i, o, 4, 2, 1)),
                nn.LeakyReLU(0.2),
            ]

        self.net = nn.Sequential(
            *block(3, ch), *block(ch, ch * 2), *block(ch * 2, ch * 4), *block(ch * 4, ch * 8)
        )
        self.head = nn.LazyLinear(1)

    def forward(self, x):
        return self.head(self.net(x).flatten(1)).squeeze(1)


class GAN(L.LightningModule):
    def __init__(self, z=128, ch=64, size=128, lr=2e-4):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.G = Generator(z, ch, size)
        self.D = Discriminator(ch)
        with torch.no_grad():
            self.D(torch.zeros(2, 3, size, size))
        self.n = 0

    def training_step(self, batch, batch_idx):
        opt_g, opt_d = self.optimizers()
        real = batch
        z = torch.randn(real.size(0), self.hparams.z, device=self.device)

        # ---- discriminator
        fake = self.G(z)
        d_loss = F.relu(1.0 - self.D(real)).mean() + F.relu(1.0 + self.D(fake.detach())).mean()
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()

        # ---- generator
        self.toggle_optimizer(opt_g)
        g_loss = -self.D(fake).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.untoggle_optimizer(opt_g)

        self.log_dict({"g": g_loss, "d": d_loss}, prog_bar=False)
        print(f"step {self.n} loss {(g_loss + d_loss).item():.9f}", flush=True)
        self.n += 1

    def configure_optimizers(self):
        g = torch.optim.Adam(self.G.parameters(), lr=self.hparams.lr, betas=(0.0, 0.9))
        d = torch.optim.Adam(self.D.parameters(), lr=self.hparams.lr * 2, betas=(0.0, 0.9))
        return [g, d]


def main():
    L.seed_everything(2024, workers=True)
    size = 32 if TINY else 128
    bs = 4 if TINY else 160
    loader = DataLoader(
        FakeFaces(bs * 22, size), batch_size=bs, shuffle=True, num_workers=0, drop_last=True
    )
    model = GAN(z=16 if TINY else 128, ch=4 if TINY else 64, size=size)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)


if __name__ == "__main__":
    main()
