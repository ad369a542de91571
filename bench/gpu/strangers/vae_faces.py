"""Convolutional beta-VAE on small colour images. The noise is drawn inside the model."""

# tiny: --batch-size 8 --width 8 --image 32 --log-dir ""
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.net = nn.Sequential(
            nn.GroupNorm(4, ch),
            nn.SiLU(),
            nn.Conv2d(ch, ch, 3, padding=1),
            nn.GroupNorm(4, ch),
            nn.SiLU(),
            nn.Conv2d(ch, ch, 3, padding=1),
        )

    def forward(self, x):
        return x + self.net(x)


class VAE(nn.Module):
    def __init__(self, width=64, image=64, z_dim=128):
        super().__init__()
        self.side = image // 8
        w = width
        self.encoder = nn.Sequential(
            nn.Conv2d(3, w, 3, padding=1),
            ResBlock(w),
            nn.Conv2d(w, w * 2, 4, 2, 1),
            ResBlock(w * 2),
            nn.Conv2d(w * 2, w * 4, 4, 2, 1),
            ResBlock(w * 4),
            nn.Conv2d(w * 4, w * 4, 4, 2, 1),
            nn.Flatten(),
        )
        flat = w * 4 * self.side**2
        self.fc_mu, self.fc_var = nn.Linear(flat, z_dim), nn.Linear(flat, z_dim)
        self.fc_dec = nn.Linear(z_dim, flat)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(w * 4, w * 4, 4, 2, 1),
            ResBlock(w * 4),
            nn.ConvTranspose2d(w * 4, w * 2, 4, 2, 1),
            ResBlock(w * 2),
            nn.ConvTranspose2d(w * 2, w, 4, 2, 1),
            ResBlock(w),
            nn.Conv2d(w, 3, 3, padding=1),
        )

    def encode(self, x):
        h = self.encoder(x)
        return self.fc_mu(h), self.fc_var(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.decoder(self.fc_dec(z).view(z.size(0), -1, self.side, self.side)))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar, beta):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + beta * kld) / x.size(0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=192)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--image", type=int, default=64)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--beta", type=float, default=1.0)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--log-dir", default="samples")
    args = p.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = torch.rand(args.batch_size * args.steps // 2, 3, args.image, args.image)
    loader = DataLoader(TensorDataset(data), batch_size=args.batch_size, shuffle=True)
    model = VAE(args.width, args.image).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(2):
        model.train()
        for (x,) in loader:
            x = x.to(device)
            optimizer.zero_grad()
            recon, mu, logvar = model(x)
            loss = loss_function(recon, x, mu, logvar, args.beta)
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.6f}", flush=True)
            step += 1
        model.eval()
        with torch.no_grad():
            sample = model.decode(torch.randn(16, 128, device=device)).cpu()
            print(f"epoch {epoch} sample mean {sample.mean():.4f}")
            if args.log_dir:
                os.makedirs(args.log_dir, exist_ok=True)
                torch.save(sample, os.path.join(args.log_dir, f"sample_{epoch}.pt"))


if __name__ == "__main__":
    main()
