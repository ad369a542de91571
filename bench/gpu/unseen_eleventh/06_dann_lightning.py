"""Domain-adversarial training (gradient reversal) in Lightning with two optimizers."""

import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
batch_size = 128 if large else 8
size = 96 if large else 24
width = 64 if large else 8
total_steps = 12


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


def stage(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.BatchNorm2d(cout),
        nn.LeakyReLU(0.1),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.BatchNorm2d(cout),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.1),
    )


class DANN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.features = nn.Sequential(
            stage(3, width),
            stage(width, 2 * width),
            stage(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(4 * width, 10)
        self.domain = nn.Sequential(nn.Linear(4 * width, 128), nn.ReLU(), nn.Linear(128, 1))

    def training_step(self, batch, index):
        source, labels, target = batch
        main, critic = self.optimizers()
        step = self.trainer.global_step // 2
        progress = step / total_steps
        strength = 2 / (1 + math.exp(-10 * progress)) - 1
        feats = self.features(torch.cat([source, target]))
        class_loss = F.cross_entropy(self.classifier(feats[: len(source)]), labels)
        side = torch.cat([torch.ones(len(source)), torch.zeros(len(target))]).to(feats)
        guess = self.domain(Reverse.apply(feats, strength)).squeeze(1)
        domain_loss = F.binary_cross_entropy_with_logits(guess, side)
        loss = class_loss + domain_loss
        main.zero_grad()
        critic.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(main, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        main.step()
        critic.step()
        self.lr_schedulers().step()
        print(
            f"step {step} loss {loss.item():.6f} class {class_loss.item():.6f}"
            f" domain {domain_loss.item():.6f}"
        )

    def validation_step(self, batch, index):
        images, labels = batch
        hit = self.classifier(self.features(images)).argmax(1) == labels
        print(f"target accuracy {hit.float().mean().item():.4f}")

    def configure_optimizers(self):
        body = [*self.features.parameters(), *self.classifier.parameters()]
        main = torch.optim.SGD(body, lr=0.02, momentum=0.9, nesterov=True)
        critic = torch.optim.Adam(self.domain.parameters(), lr=1e-3)
        return [main, critic], [torch.optim.lr_scheduler.CosineAnnealingLR(main, total_steps)]


def draw(n, seed, shifted):
    """Stripes whose angle is the class; the target domain has other colours and more noise."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (n,), generator=g)
    angle = labels * math.pi / 10
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    along = xs * angle.cos()[:, None, None] + ys * angle.sin()[:, None, None]
    waves = torch.sin(along * 0.7 + 6 * torch.rand(n, 1, 1, generator=g))
    tint = torch.tensor([0.3, -0.8, 1.0] if shifted else [1.0, 0.6, 0.2])
    images = waves[:, None] * tint[:, None, None]
    noise = torch.randn(images.shape, generator=g)
    return images + (0.6 if shifted else 0.2) * noise, labels


if __name__ == "__main__":
    L.seed_everything(17)
    source, labels = draw(batch_size * 6, 1, False)
    target, _ = draw(batch_size * 6, 2, True)
    train = DataLoader(TensorDataset(source, labels, target), batch_size=batch_size, shuffle=True)
    val = DataLoader(TensorDataset(*draw(batch_size, 3, True)), batch_size=batch_size)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="gpu" if large else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(DANN(), train, val)
