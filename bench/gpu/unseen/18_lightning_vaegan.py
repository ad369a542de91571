import os
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
SMALL = os.environ.get("SMALL") == "1"


def block(cin, cout, down):
    conv = nn.Conv2d(cin, cout, 4, 2, 1) if down else nn.ConvTranspose2d(cin, cout, 4, 2, 1)
    return nn.Sequential(
        conv,
        nn.BatchNorm2d(cout),
        nn.LeakyReLU(0.2),
        nn.Conv2d(cout, cout, 3, 1, 1),
        nn.BatchNorm2d(cout),
        nn.LeakyReLU(0.2),
    )


class Encoder(nn.Module):
    def __init__(self, ch, size, z):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, ch, 3, 1, 1),
            nn.BatchNorm2d(ch),
            nn.LeakyReLU(0.2),
            block(ch, 2 * ch, True),
            block(2 * ch, 4 * ch, True),
            block(4 * ch, 4 * ch, True),
        )
        self.fc = nn.Linear(4 * ch * (size // 8) ** 2, 2 * z)

    def forward(self, x):
        return self.fc(self.net(x).flatten(1)).chunk(2, dim=1)


class Decoder(nn.Module):
    def __init__(self, ch, size, z):
        super().__init__()
        self.shape = (4 * ch, size // 8, size // 8)
        self.fc = nn.Linear(z, self.shape[0] * self.shape[1] * self.shape[2])
        self.net = nn.Sequential(
            block(4 * ch, 4 * ch, False),
            block(4 * ch, 2 * ch, False),
            block(2 * ch, ch, False),
            nn.Conv2d(ch, 3, 3, 1, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.fc(z).view(-1, *self.shape))


class Discriminator(nn.Module):
    def __init__(self, ch):
        super().__init__()
        sn = nn.utils.parametrizations.spectral_norm
        self.l1 = nn.Sequential(sn(nn.Conv2d(3, ch, 3, 1, 1)), nn.LeakyReLU(0.2))
        self.l2 = nn.Sequential(sn(nn.Conv2d(ch, 2 * ch, 4, 2, 1)), nn.LeakyReLU(0.2))
        self.l3 = nn.Sequential(sn(nn.Conv2d(2 * ch, 4 * ch, 4, 2, 1)), nn.LeakyReLU(0.2))
        self.out = sn(nn.Conv2d(4 * ch, 1, 3, 1, 1))

    def forward(self, x):
        feat = self.l3(self.l2(self.l1(x)))
        return self.out(feat), feat


class VAEGAN(L.LightningModule):
    def __init__(self, ch=64, size=64, z=128, lr=2e-4, beta=0.1, gamma=0.5):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.enc, self.dec, self.disc = (
            Encoder(ch, size, z),
            Decoder(ch, size, z),
            Discriminator(ch),
        )

    def configure_optimizers(self):
        hp = self.hparams
        opt_vae = torch.optim.Adam(
            list(self.enc.parameters()) + list(self.dec.parameters()), lr=hp.lr, betas=(0.5, 0.9)
        )
        opt_d = torch.optim.Adam(self.disc.parameters(), lr=hp.lr, betas=(0.5, 0.9))
        sch = torch.optim.lr_scheduler.ExponentialLR(opt_vae, gamma=0.98)
        return [opt_vae, opt_d], [sch]

    def training_step(self, batch, batch_idx):
        (x,) = batch
        opt_vae, opt_d = self.optimizers()

        mu, logvar = self.enc(x)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        recon = self.dec(z)
        sample = self.dec(torch.randn_like(mu))

        # ---- vae ----
        self.toggle_optimizer(opt_vae)
        fake_logit, fake_feat = self.disc(recon)
        with torch.no_grad():
            _, real_feat = self.disc(x)
        kl = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
        rec = F.l1_loss(recon, x) + self.hparams.gamma * F.mse_loss(fake_feat, real_feat)
        adv = F.softplus(-fake_logit).mean() + F.softplus(-self.disc(sample)[0]).mean()
        loss_vae = rec + self.hparams.beta * kl + 0.1 * adv
        opt_vae.zero_grad()
        self.manual_backward(loss_vae)
        self.clip_gradients(opt_vae, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        opt_vae.step()
        self.untoggle_optimizer(opt_vae)

        # ---- discriminator ----
        self.toggle_optimizer(opt_d)
        real = self.disc(x)[0]
        fake = self.disc(torch.cat([recon.detach(), sample.detach()]))[0]
        loss_d = F.softplus(-real).mean() + F.softplus(fake).mean()
        opt_d.zero_grad()
        self.manual_backward(loss_d)
        opt_d.step()
        self.untoggle_optimizer(opt_d)

        if batch_idx % 5 == 4:
            self.lr_schedulers().step()
        print(
            f"step {batch_idx} loss {loss_vae.item():.6f} d {loss_d.item():.6f} kl {kl.item():.6f}"
        )


def make_loader(bs, size, steps):
    g = torch.Generator().manual_seed(31)
    low = torch.rand(bs * steps, 3, 4, 4, generator=g) * 2 - 1
    x = F.interpolate(low, size=(size, size), mode="nearest")
    return DataLoader(
        TensorDataset(x), batch_size=bs, shuffle=True, generator=torch.Generator().manual_seed(2)
    )


if __name__ == "__main__":
    L.seed_everything(31, verbose=False)
    torch.backends.cudnn.deterministic = True
    bs, size, ch, steps = (4, 16, 8, 12) if SMALL else (192, 64, 64, 16)
    model = VAEGAN(ch=ch, size=size, z=16 if SMALL else 128)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, make_loader(bs, size, steps))
