"""Image deblurring with a NAFNet-like restoration network in Lightning, growing patch sizes."""

import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
ON_GPU = torch.cuda.is_available()

if ON_GPU:
    WIDTH, ENC, MID, DEC = 40, (1, 1, 2), 4, (1, 1, 1)
    SCHEDULE = [(16, 128)] * 4 + [(10, 192)] * 4 + [(8, 256)] * 4
else:
    WIDTH, ENC, MID, DEC = 8, (1, 1), 1, (1, 1)
    SCHEDULE = [(4, 16)] * 3 + [(2, 24)] * 3 + [(2, 32)] * 2


class Blurred(IterableDataset):
    """Yields whole batches: sharp random textures and a motion-blurred, noisy copy."""

    def __init__(self, schedule, seed):
        self.schedule, self.seed = schedule, seed

    def __len__(self):
        return len(self.schedule)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for batch, size in self.schedule:
            coarse = torch.rand(batch, 3, size // 8, size // 8, generator=g)
            fine = torch.rand(batch, 3, size // 2, size // 2, generator=g)
            sharp = F.interpolate(coarse, size=size) * 0.7 + F.interpolate(fine, size=size) * 0.3
            length = int(torch.randint(3, 8, (1,), generator=g)) | 1
            kernel = torch.full((3, 1, 1, length), 1.0 / length)
            blur = F.conv2d(sharp, kernel, padding=(0, length // 2), groups=3)
            yield blur + 0.01 * torch.randn(blur.shape, generator=g), sharp


class ChannelNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, c, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(self, x):
        mu = x.mean(1, keepdim=True)
        var = (x - mu).pow(2).mean(1, keepdim=True)
        return (x - mu) / (var + 1e-6).sqrt() * self.weight + self.bias


def simple_gate(x):
    a, b = x.chunk(2, dim=1)
    return a * b


class NAFBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n1, self.n2 = ChannelNorm(c), ChannelNorm(c)
        self.expand = nn.Conv2d(c, 2 * c, 1)
        self.depthwise = nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c)
        self.attend = nn.Conv2d(c, c, 1)
        self.project = nn.Conv2d(c, c, 1)
        self.ffn_in, self.ffn_out = nn.Conv2d(c, 2 * c, 1), nn.Conv2d(c, c, 1)
        self.beta = nn.Parameter(torch.zeros(1, c, 1, 1))
        self.gamma = nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(self, x):
        y = simple_gate(self.depthwise(self.expand(self.n1(x))))
        y = y * self.attend(y.mean((2, 3), keepdim=True))
        x = x + self.project(y) * self.beta
        return x + self.ffn_out(simple_gate(self.ffn_in(self.n2(x)))) * self.gamma


class NAFNet(nn.Module):
    def __init__(self):
        super().__init__()
        c = WIDTH
        self.intro, self.ending = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.enc, self.down = nn.ModuleList(), nn.ModuleList()
        for n in ENC:
            self.enc.append(nn.Sequential(*(NAFBlock(c) for _ in range(n))))
            self.down.append(nn.Conv2d(c, 2 * c, 2, 2))
            c *= 2
        self.mid = nn.Sequential(*(NAFBlock(c) for _ in range(MID)))
        self.dec, self.up = nn.ModuleList(), nn.ModuleList()
        for n in DEC:
            self.up.append(nn.Sequential(nn.Conv2d(c, 2 * c, 1, bias=False), nn.PixelShuffle(2)))
            c //= 2
            self.dec.append(nn.Sequential(*(NAFBlock(c) for _ in range(n))))

    def forward(self, image):
        x, skips = self.intro(image), []
        for enc, down in zip(self.enc, self.down, strict=True):
            x = enc(x)
            skips.append(x)
            x = down(x)
        x = self.mid(x)
        for up, dec in zip(self.up, self.dec, strict=True):
            x = dec(up(x) + skips.pop())
        return self.ending(x) + image


def psnr(a, b):
    return -10 * torch.log10((a.float() - b.float()).pow(2).mean((1, 2, 3)) + 1e-8)


class Restorer(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = NAFNet()

    def training_step(self, batch, batch_idx):
        blurred, sharp = batch
        restored = self.net(blurred)
        # negative PSNR plus a term on the spectrum
        spectrum = torch.fft.rfft2(restored.float()) - torch.fft.rfft2(sharp)
        loss = -0.1 * psnr(restored, sharp).mean() + 0.01 * spectrum.abs().mean()
        print(f"step {batch_idx} loss {loss.item():.6f} size {sharp.shape[-1]}", flush=True)
        return loss

    def validation_step(self, batch, batch_idx):
        blurred, sharp = batch
        print(f"  val psnr {psnr(self.net(blurred), sharp).mean().item():.3f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3, betas=(0.9, 0.9), weight_decay=1e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, len(SCHEDULE), eta_min=1e-6)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(99, verbose=False)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="gpu" if ON_GPU else "cpu",
        devices=1,
        precision="bf16-mixed" if ON_GPU else "32-true",
        gradient_clip_val=0.5,
        num_sanity_val_steps=0,
        val_check_interval=len(SCHEDULE) // 2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = DataLoader(Blurred(SCHEDULE, seed=0), batch_size=None)
    val = DataLoader(Blurred(SCHEDULE[-1:], seed=1), batch_size=None)
    trainer.fit(Restorer(), train, val)
