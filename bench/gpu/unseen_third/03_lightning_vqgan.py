"""A VQ-GAN as in the paper: Lightning with two optimizers, adaptive weight of the adversarial loss,
R1 penalty every fourth step."""

import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

SMALL = os.environ.get("SMALL", "0") == "1"


def norm(c):
    return nn.GroupNorm(min(32, c // 4), c)


class Res(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.n1, self.c1 = norm(i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = norm(o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x):
        h = self.c1(F.silu(self.n1(x)))
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class Encoder(nn.Module):
    def __init__(self, ch, mult, z):
        super().__init__()
        layers, c = [nn.Conv2d(3, ch, 3, padding=1)], ch
        for m in mult:
            layers += [Res(c, ch * m), nn.Conv2d(ch * m, ch * m, 3, 2, 1)]
            c = ch * m
        self.net = nn.Sequential(*layers, Res(c, c), norm(c), nn.SiLU(), nn.Conv2d(c, z, 1))

    def forward(self, x):
        return self.net(x)


class Decoder(nn.Module):
    def __init__(self, ch, mult, z):
        super().__init__()
        c = ch * mult[-1]
        layers = [nn.Conv2d(z, c, 3, padding=1), Res(c, c)]
        for m in reversed(mult):
            layers += [Res(c, ch * m), nn.Upsample(scale_factor=2, mode="nearest")]
            c = ch * m
        self.net = nn.Sequential(*layers, norm(c), nn.SiLU())
        self.last = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, z):
        return self.last(self.net(z))


class Quantizer(nn.Module):
    def __init__(self, n, z, beta=0.25):
        super().__init__()
        self.book, self.beta = nn.Embedding(n, z), beta
        nn.init.uniform_(self.book.weight, -1 / n, 1 / n)

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.size(1))
        d = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.book.weight.t()
        idx = (d + self.book.weight.pow(2).sum(1)).argmin(1)
        q = self.book(idx).view(z.size(0), z.size(2), z.size(3), -1).permute(0, 3, 1, 2)
        loss = F.mse_loss(q, z.detach()) + self.beta * F.mse_loss(q.detach(), z)
        return z + (q - z).detach(), loss


class PatchD(nn.Module):
    def __init__(self, ch):
        super().__init__()
        seq, c = [nn.Conv2d(3, ch, 4, 2, 1), nn.LeakyReLU(0.2)], ch
        for _ in range(2):
            seq += [nn.Conv2d(c, c * 2, 4, 2, 1), norm(c * 2), nn.LeakyReLU(0.2)]
            c *= 2
        self.net = nn.Sequential(*seq, nn.Conv2d(c, 1, 3, padding=1))

    def forward(self, x):
        return self.net(x)


class VQGAN(L.LightningModule):
    def __init__(self, ch, mult, z, codes, lr=2e-4):
        super().__init__()
        self.automatic_optimization = False
        self.enc, self.dec = Encoder(ch, mult, z), Decoder(ch, mult, z)
        self.quant, self.disc, self.lr = Quantizer(codes, z), PatchD(ch), lr

    def adaptive_weight(self, rec, gen):
        last = self.dec.last.weight
        a = torch.autograd.grad(rec, last, retain_graph=True)[0]
        b = torch.autograd.grad(gen, last, retain_graph=True)[0]
        return (a.norm() / (b.norm() + 1e-4)).clamp(0, 1e4).detach()

    def training_step(self, batch, batch_idx):
        opt_ae, opt_d = self.optimizers()
        x = batch[0].float() / 127.5 - 1
        # autoencoder
        self.toggle_optimizer(opt_ae)
        q, q_loss = self.quant(self.enc(x))
        y = self.dec(q)
        rec = (y - x).abs().mean()
        gen = -self.disc(y).mean()
        ae_loss = rec + q_loss + 0.5 * self.adaptive_weight(rec, gen) * gen
        opt_ae.zero_grad()
        self.manual_backward(ae_loss)
        self.clip_gradients(opt_ae, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        opt_ae.step()
        self.untoggle_optimizer(opt_ae)
        # discriminator
        self.toggle_optimizer(opt_d)
        real = x.detach().requires_grad_(batch_idx % 4 == 0)
        d_real, d_fake = self.disc(real), self.disc(y.detach())
        d_loss = 0.5 * (F.relu(1 - d_real).mean() + F.relu(1 + d_fake).mean())
        if batch_idx % 4 == 0:
            (g,) = torch.autograd.grad(d_real.sum(), real, create_graph=True)
            d_loss = d_loss + 5.0 * g.pow(2).sum((1, 2, 3)).mean()
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        self.log("rec", rec)
        print(f"step {batch_idx} loss_ae {ae_loss.item():.8f} loss_d {d_loss.item():.8f}")

    def configure_optimizers(self):
        ae = [*self.enc.parameters(), *self.dec.parameters(), *self.quant.parameters()]
        return (
            torch.optim.Adam(ae, lr=self.lr, betas=(0.5, 0.9)),
            torch.optim.Adam(self.disc.parameters(), lr=self.lr, betas=(0.5, 0.9)),
        )


if __name__ == "__main__":
    L.seed_everything(99, workers=True)
    size, bs = (32, 2) if SMALL else (128, 32)
    images = torch.randint(0, 256, (bs * 14, 3, size, size), dtype=torch.uint8)
    model = VQGAN(16 if SMALL else 96, [1, 2] if SMALL else [1, 1, 2, 4], 16 if SMALL else 128, 512)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(images), batch_size=bs, shuffle=True))
