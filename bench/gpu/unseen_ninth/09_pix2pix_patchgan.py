"""Image-to-image translation with pix2pix: U-Net generator, PatchGAN discriminator, fp16."""

import torch
from torch import nn

torch.manual_seed(2024)
device = "cuda" if torch.cuda.is_available() else "cpu"
use_amp = device == "cuda"

image_size, batch_size, ngf, n_down, n_steps = 256, 64, 64, 7, 12
if device == "cpu":
    image_size, batch_size, ngf, n_down, n_steps = 32, 2, 8, 4, 8


class UnetBlock(nn.Module):
    """Built from the inside out: down, the inner block, up, and a skip connection."""

    def __init__(self, outer, inner, sub=None, cin=None, outermost=False, dropout=False):
        super().__init__()
        self.outermost = outermost
        down = nn.Conv2d(cin or outer, inner, 4, 2, 1, bias=False)
        up_in = inner if sub is None else inner * 2
        up = nn.ConvTranspose2d(up_in, outer, 4, 2, 1, bias=outermost)
        if outermost:
            layers = [down, sub, nn.ReLU(), up, nn.Tanh()]
        elif sub is None:
            layers = [nn.LeakyReLU(0.2), down, nn.ReLU(), up, nn.BatchNorm2d(outer)]
        else:
            layers = [nn.LeakyReLU(0.2), down, nn.BatchNorm2d(inner), sub]
            layers += [nn.ReLU(), up, nn.BatchNorm2d(outer)]
            if dropout:
                layers.append(nn.Dropout(0.5))
        self.model = nn.Sequential(*layers)

    def forward(self, x):
        if self.outermost:
            return self.model(x)
        return torch.cat([x, self.model(x)], 1)


def build_generator():
    block = UnetBlock(ngf * 8, ngf * 8)
    for _ in range(n_down - 5):
        block = UnetBlock(ngf * 8, ngf * 8, block, dropout=True)
    if n_down >= 5:
        block = UnetBlock(ngf * 4, ngf * 8, block)
    else:
        block = UnetBlock(ngf * 4, ngf * 8, block, dropout=True)
    block = UnetBlock(ngf * 2, ngf * 4, block)
    block = UnetBlock(ngf, ngf * 2, block)
    return UnetBlock(3, ngf, block, cin=3, outermost=True)


def build_discriminator(ndf=ngf):
    layers = [nn.Conv2d(6, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for i in range(2):
        cin, cout = ndf * 2**i, ndf * 2 ** (i + 1)
        layers += [nn.Conv2d(cin, cout, 4, 2, 1, bias=False), nn.BatchNorm2d(cout)]
        layers += [nn.LeakyReLU(0.2, True)]
    layers += [nn.Conv2d(ndf * 4, ndf * 8, 3, 1, 1, bias=False), nn.BatchNorm2d(ndf * 8)]
    layers += [nn.LeakyReLU(0.2, True), nn.Conv2d(ndf * 8, 1, 3, 1, 1)]
    return nn.Sequential(*layers)


def init_weights(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)


def make_pair():
    """Label maps of random blobs (A) and their textured rendering (B)."""
    seeds = torch.randn(batch_size, 3, 8, 8, device=device)
    field = nn.functional.interpolate(seeds, size=image_size, mode="bilinear")
    labels = field.argmax(1)
    a = nn.functional.one_hot(labels, 3).permute(0, 3, 1, 2).float() * 2 - 1
    texture = 0.3 * torch.randn(1, 3, image_size, image_size, device=device)
    b = (a.roll(1, dims=1) * 0.6 + texture * (labels[:, None] == 1)).clamp(-1, 1)
    return a, b


def set_requires_grad(net, flag):
    for p in net.parameters():
        p.requires_grad = flag


netG = build_generator().to(device).apply(init_weights)
netD = build_discriminator().to(device).apply(init_weights)
opt_g = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
scaler_g = torch.amp.GradScaler(device, enabled=use_amp)
scaler_d = torch.amp.GradScaler(device, enabled=use_amp)
gan_loss = nn.BCEWithLogitsLoss()
l1_loss = nn.L1Loss()


def adversarial(pred, real):
    target = torch.ones_like(pred) if real else torch.zeros_like(pred)
    return gan_loss(pred, target)


for step in range(n_steps):
    real_a, real_b = make_pair()
    with torch.autocast(device, dtype=torch.float16, enabled=use_amp):
        fake_b = netG(real_a)

    set_requires_grad(netD, True)
    opt_d.zero_grad()
    with torch.autocast(device, dtype=torch.float16, enabled=use_amp):
        pred_fake = netD(torch.cat([real_a, fake_b.detach()], 1))
        pred_real = netD(torch.cat([real_a, real_b], 1))
        loss_d = 0.5 * (adversarial(pred_fake, False) + adversarial(pred_real, True))
    scaler_d.scale(loss_d).backward()
    scaler_d.step(opt_d)
    scaler_d.update()

    set_requires_grad(netD, False)
    opt_g.zero_grad()
    with torch.autocast(device, dtype=torch.float16, enabled=use_amp):
        pred = netD(torch.cat([real_a, fake_b], 1))
        loss_g = adversarial(pred, True) + 100.0 * l1_loss(fake_b, real_b)
    scaler_g.scale(loss_g).backward()
    scaler_g.step(opt_g)
    scaler_g.update()
    print(f"step {step} loss {loss_g.item():.6f} d {loss_d.item():.6f}", flush=True)
