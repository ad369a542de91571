import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


def make_logger(every, sink):
    curve = []

    def log(step, value):
        curve.append(value)  # expect: graph-kept-here
        if step % every == 0 and curve:
            recent = curve[-every:]
            sink(f"{step:6d} {sum(float(v) for v in recent) / len(recent):.5f}")

    def finish(path):
        with open(path, "w") as f:
            for v in curve:
                f.write(f"{float(v):.6f}\n")

    return log, finish


class Fourier(nn.Module):
    def __init__(self, width=256, bands=10):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(bands) * math.pi)
        self.net = nn.Sequential(
            nn.Linear(2 * 2 * bands, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 3),
            nn.Sigmoid(),
        )

    def forward(self, xy):
        a = (xy[..., None] * self.freq).flatten(-2)
        return self.net(torch.cat([a.sin(), a.cos()], -1))


def batches(image, n):
    h, w, _ = image.shape
    while True:
        y = torch.randint(h, (n,), device=image.device)
        x = torch.randint(w, (n,), device=image.device)
        xy = torch.stack([x / w, y / h], -1) * 2 - 1
        yield xy, image[y, x]


def fit(image, steps=200_000, n=65_536):
    model = Fourier().to(device)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    log, finish = make_logger(1000, print)
    stream = batches(image.to(device), n)
    for step in range(steps):
        xy, rgb = next(stream)
        loss = F.mse_loss(model(xy), rgb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log(step, loss)  # expect: graph-kept-in-list
    finish("curve.txt")
    return model


if __name__ == "__main__":
    from torchvision.io import read_image

    picture = read_image("tower.png")[:3].permute(1, 2, 0).float() / 255
    torch.save(fit(picture).state_dict(), "tower.pt")
