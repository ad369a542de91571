"""Networks that project_resume.py trains."""

from torch import nn


class Generator(nn.Module):
    def __init__(self, latent=100, features=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvTranspose2d(latent, features * 8, 4),
            nn.BatchNorm2d(features * 8),
            nn.ReLU(),
            nn.ConvTranspose2d(features * 8, 3, 4),
        )


class Wide(nn.Module):
    def __init__(self, width=8192):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)


class Deep(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(64, 64) for _ in range(layers)])
