import itertools
import os
import random

import torch
import torch.nn as nn


class ImagePool:
    """History of generated images (Shrivastava et al.)."""

    def __init__(self, pool_size):
        self.pool_size = pool_size
        self.images = []

    def query(self, images):
        out = []
        for image in images:
            image = image.detach().unsqueeze(0)
            if len(self.images) < self.pool_size:
                self.images.append(image.clone())
                out.append(image)
            elif random.uniform(0, 1) > 0.5:
                i = random.randint(0, self.pool_size - 1)
                tmp = self.images[i].clone()
                self.images[i] = image.clone()
                out.append(tmp)
            else:
                out.append(image)
        return torch.cat(out, 0)


class ResnetBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv_block = nn.Sequential(
            nn.Conv2d(dim, dim, 3, padding=1),
            nn.InstanceNorm2d(dim),
            nn.ReLU(True),
            nn.Conv2d(dim, dim, 3, padding=1),
            nn.InstanceNorm2d(dim),
        )

    def forward(self, x):
        return x + self.conv_block(x)


def define_G(ngf, n_blocks):
    model = [nn.Conv2d(3, ngf, 7, padding=3), nn.InstanceNorm2d(ngf), nn.ReLU(True)]
    for i in range(2):
        m = 2**i
        model += [
            nn.Conv2d(ngf * m, ngf * m * 2, 3, stride=2, padding=1),
            nn.InstanceNorm2d(ngf * m * 2),
            nn.ReLU(True),
        ]
    model += [ResnetBlock(ngf * 4) for _ in range(n_blocks)]
    for i in range(2):
        m = 2 ** (2 - i)
        model += [
            nn.ConvTranspose2d(ngf * m, ngf * m // 2, 3, stride=2, padding=1, output_padding=1),
            nn.InstanceNorm2d(ngf * m // 2),
            nn.ReLU(True),
        ]
    model += [nn.Conv2d(ngf, 3, 7, padding=3), nn.Tanh()]
    return nn.Sequential(*model)


def define_D(ndf):
    return nn.Sequential(
        nn.Conv2d(3, ndf, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(ndf, ndf * 2, 4, 2, 1),
        nn.InstanceNorm2d(ndf * 2),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1),
        nn.InstanceNorm2d(ndf * 4),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(ndf * 4, 1, 4, 1, 1),
    )


def init_weights(net, gain=0.02):
    for m in net.modules():
        if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(m.weight, 0.0, gain)
            nn.init.zeros_(m.bias)
    return net


class CycleGANModel:
    def __init__(self, opt):
        self.opt = opt
        d = opt["device"]
        self.netG_A = init_weights(define_G(opt["ngf"], opt["n_blocks"])).to(d)
        self.netG_B = init_weights(define_G(opt["ngf"], opt["n_blocks"])).to(d)
        self.netD_A = init_weights(define_D(opt["ngf"])).to(d)
        self.netD_B = init_weights(define_D(opt["ngf"])).to(d)
        self.fake_A_pool, self.fake_B_pool = ImagePool(opt["pool"]), ImagePool(opt["pool"])
        self.mse, self.l1 = nn.MSELoss(), nn.L1Loss()
        self.optimizer_G = torch.optim.Adam(
            itertools.chain(self.netG_A.parameters(), self.netG_B.parameters()),
            lr=2e-4,
            betas=(0.5, 0.999),
        )
        self.optimizer_D = torch.optim.Adam(
            itertools.chain(self.netD_A.parameters(), self.netD_B.parameters()),
            lr=2e-4,
            betas=(0.5, 0.999),
        )

    def gan_loss(self, pred, is_real):
        return self.mse(
            pred, torch.tensor(1.0 if is_real else 0.0, device=pred.device).expand_as(pred)
        )

    def set_requires_grad(self, nets, flag):
        for net in nets:
            for p in net.parameters():
                p.requires_grad = flag

    def backward_D_basic(self, netD, real, fake):
        loss = (self.gan_loss(netD(real), True) + self.gan_loss(netD(fake.detach()), False)) * 0.5
        loss.backward()
        return loss

    def optimize_parameters(self, real_A, real_B):
        fake_B = self.netG_A(real_A)
        rec_A = self.netG_B(fake_B)
        fake_A = self.netG_B(real_B)
        rec_B = self.netG_A(fake_A)

        self.set_requires_grad([self.netD_A, self.netD_B], False)
        self.optimizer_G.zero_grad()
        loss_idt = self.l1(self.netG_A(real_B), real_B) + self.l1(self.netG_B(real_A), real_A)
        loss_gan = self.gan_loss(self.netD_A(fake_B), True) + self.gan_loss(
            self.netD_B(fake_A), True
        )
        loss_cyc = self.l1(rec_A, real_A) + self.l1(rec_B, real_B)
        loss_G = loss_gan + 10.0 * loss_cyc + 5.0 * loss_idt
        loss_G.backward()
        self.optimizer_G.step()

        self.set_requires_grad([self.netD_A, self.netD_B], True)
        self.optimizer_D.zero_grad()
        loss_D_A = self.backward_D_basic(self.netD_A, real_B, self.fake_B_pool.query(fake_B))
        loss_D_B = self.backward_D_basic(self.netD_B, real_A, self.fake_A_pool.query(fake_A))
        self.optimizer_D.step()
        return loss_G.item(), (loss_D_A + loss_D_B).item()


def main():
    small = os.environ.get("SMALL") == "1"
    random.seed(0)
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    opt = dict(ngf=8 if small else 64, n_blocks=2 if small else 6, pool=50, device=device)
    bs, size, n_steps = (2, 32, 12) if small else (24, 128, 14)
    model = CycleGANModel(opt)
    gen = torch.Generator().manual_seed(8)
    ramp = torch.linspace(-1, 1, size)
    for step in range(n_steps):
        a = (ramp[None, None, None] * torch.rand(bs, 3, 1, 1, generator=gen)).expand(
            -1, -1, size, -1
        )
        b = (ramp[None, None, :, None] * torch.rand(bs, 3, 1, 1, generator=gen)).expand(
            -1, -1, -1, size
        )
        a = a + 0.1 * torch.randn(bs, 3, size, size, generator=gen)
        b = b + 0.1 * torch.randn(bs, 3, size, size, generator=gen)
        lg, ld = model.optimize_parameters(a.to(device), b.to(device))
        print(f"step {step} loss {lg:.6f} loss_D {ld:.6f}")


main()
