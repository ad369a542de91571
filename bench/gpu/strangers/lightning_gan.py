"""A convolutional GAN in Lightning: two optimizers by hand, spectral norm in the discriminator,
sampled images logged at the end.
"""

# tiny: --width 4 --batch 6 --size 16
import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--width", type=int, default=96)
p.add_argument("--batch", type=int, default=128)
p.add_argument("--size", type=int, default=96)
a = p.parse_args()


def up(i, o):
    return nn.Sequential(
        nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.ReLU()
    )


def down(i, o):
    return nn.Sequential(spectral_norm(nn.Conv2d(i, o, 4, 2, 1)), nn.LeakyReLU(0.2, inplace=True))


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        w, s = a.width, a.size // 8
        self.start = nn.Linear(64, 4 * w * s * s)
        self.generator = nn.Sequential(
            nn.Unflatten(1, (4 * w, s, s)),
            up(4 * w, 4 * w),
            up(4 * w, 2 * w),
            up(2 * w, w),
            nn.Conv2d(w, 3, 3, padding=1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            down(3, w),
            down(w, 2 * w),
            down(2 * w, 4 * w),
            nn.Flatten(),
            nn.Linear(4 * w * s * s, 1),
        )

    def forward(self, z):
        return self.generator(self.start(z))

    def training_step(self, batch, i):
        real = batch[0]
        gen, dis = self.optimizers()
        g = torch.Generator().manual_seed(i)
        z = torch.randn(len(real), 64, generator=g).to(self.device)
        self.toggle_optimizer(gen)
        loss_g = F.softplus(-self.discriminator(self(z))).mean()
        gen.zero_grad()
        self.manual_backward(loss_g)
        gen.step()
        self.untoggle_optimizer(gen)
        self.toggle_optimizer(dis)
        fake = self(z).detach()
        loss_d = (
            F.softplus(-self.discriminator(real)).mean()
            + F.softplus(self.discriminator(fake)).mean()
        )
        dis.zero_grad()
        self.manual_backward(loss_d)
        dis.step()
        self.untoggle_optimizer(dis)
        print("step %d loss %.9g g %.9g" % (i, loss_d.item(), loss_g.item()), flush=True)

    def configure_optimizers(self):
        return (
            torch.optim.Adam(
                [*self.start.parameters(), *self.generator.parameters()], 1e-4, (0.5, 0.99)
            ),
            torch.optim.Adam(self.discriminator.parameters(), 1e-4, (0.5, 0.99)),
        )


L.seed_everything(1, verbose=False)
images = torch.rand(12 * a.batch, 3, a.size, a.size) * 2 - 1
L.Trainer(
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(GAN(), DataLoader(TensorDataset(images), a.batch))
