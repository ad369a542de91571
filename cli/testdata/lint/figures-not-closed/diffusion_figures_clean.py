import math
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from ddpm.unet import SmallUNet
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

T = 1000
DEVICE = "cuda"


def schedule():
    t = torch.linspace(0, 1, T + 1)
    f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    alpha_bar = f / f[0]
    beta = (1 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=0.999)
    return beta.to(DEVICE), torch.cumprod(1 - beta, 0).to(DEVICE)


@torch.no_grad()
def sample(net, beta, abar, n=64):
    net.eval()
    x = torch.randn(n, 1, 32, 32, device=DEVICE)
    for i in reversed(range(T)):
        t = torch.full((n,), i, device=DEVICE)
        eps = net(x, t)
        mean = (x - beta[i] / (1 - abar[i]).sqrt() * eps) / (1 - beta[i]).sqrt()
        x = mean + (beta[i].sqrt() * torch.randn_like(x) if i else 0)
    net.train()
    return x.clamp(-1, 1).cpu()


def save_grid(images, step, folder="samples"):
    os.makedirs(folder, exist_ok=True)
    fig, axes = plt.subplots(8, 8, figsize=(16, 16), dpi=150)
    for ax, im in zip(axes.flat, images):
        ax.imshow(im[0].numpy(), cmap="gray", vmin=-1, vmax=1)
        ax.axis("off")
    fig.savefig(os.path.join(folder, f"{step:07d}.png"))
    plt.close(fig)


def main():
    tf = transforms.Compose(
        [transforms.Pad(2), transforms.ToTensor(), transforms.Normalize(0.5, 0.5)]
    )
    loader = DataLoader(
        datasets.FashionMNIST("/data", transform=tf, download=True),
        128,
        shuffle=True,
        num_workers=4,
    )
    net = SmallUNet(channels=64).to(DEVICE)
    opt = torch.optim.AdamW(net.parameters(), 2e-4)
    beta, abar = schedule()
    step = 0
    for epoch in range(200):
        for x, _ in loader:
            x = x.to(DEVICE)
            t = torch.randint(0, T, (x.size(0),), device=DEVICE)
            noise = torch.randn_like(x)
            a = abar[t].view(-1, 1, 1, 1)
            loss = F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 250 == 0:
                print(step, loss.item())
                save_grid(sample(net, beta, abar), step)


if __name__ == "__main__":
    main()
