"""Discrete VAE (DALL-E stage one) with gumbel-softmax relaxation and temperature annealing."""

import math
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import einsum, nn

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")

# constants

IMAGE_SIZE = 256 if CUDA else 32
BATCH_SIZE = 16 if CUDA else 2
NUM_TOKENS = 8192 if CUDA else 32
CODEBOOK_DIM = 256 if CUDA else 16
HIDDEN_DIM = 128 if CUDA else 8
NUM_LAYERS = 3 if CUDA else 2
NUM_RESNET_BLOCKS = 2 if CUDA else 1
NUM_STEPS = 10 if CUDA else 3
LEARNING_RATE = 3e-4
LR_DECAY = 0.98
START_TEMP, TEMP_MIN, ANNEAL = 1.0, 0.5, 1e-2
KL_WEIGHT = 1e-3
SAVE_EVERY = 5


def exists(v):
    return v is not None


class ResBlock(nn.Module):
    def __init__(self, chan):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(chan, chan, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(chan, chan, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(chan, chan, 1),
        )

    def forward(self, x):
        return self.net(x) + x


class DiscreteVAE(nn.Module):
    def __init__(
        self,
        image_size,
        num_tokens,
        codebook_dim,
        num_layers,
        num_resnet_blocks,
        hidden_dim,
        kl_div_loss_weight=0.0,
    ):
        super().__init__()
        assert log2(image_size).is_integer()
        self.num_tokens = num_tokens
        self.kl_div_loss_weight = kl_div_loss_weight
        self.codebook = nn.Embedding(num_tokens, codebook_dim)

        enc, dec = [], []
        cin = 3
        for _ in range(num_layers):
            enc += [nn.Conv2d(cin, hidden_dim, 4, stride=2, padding=1), nn.ReLU()]
            cin = hidden_dim
        for _ in range(num_resnet_blocks):
            enc.append(ResBlock(hidden_dim))
        enc.append(nn.Conv2d(hidden_dim, num_tokens, 1))

        dec.append(nn.Conv2d(codebook_dim, hidden_dim, 1))
        for _ in range(num_resnet_blocks):
            dec.append(ResBlock(hidden_dim))
        for _ in range(num_layers):
            dec += [nn.ConvTranspose2d(hidden_dim, hidden_dim, 4, stride=2, padding=1), nn.ReLU()]
        dec.append(nn.Conv2d(hidden_dim, 3, 1))

        self.encoder = nn.Sequential(*enc)
        self.decoder = nn.Sequential(*dec)

    @torch.no_grad()
    def get_codebook_indices(self, images):
        return self(images, return_logits=True).argmax(dim=1).flatten(1)

    def decode(self, indices):
        embeds = self.codebook(indices)
        b, n, d = embeds.shape
        h = w = int(math.sqrt(n))
        return self.decoder(embeds.transpose(1, 2).reshape(b, d, h, w))

    def forward(self, img, return_logits=False, temp=None):
        logits = self.encoder(img)
        if return_logits:
            return logits
        soft_one_hot = F.gumbel_softmax(logits, tau=temp, dim=1)
        sampled = einsum("b n h w, n d -> b d h w", soft_one_hot, self.codebook.weight)
        out = self.decoder(sampled)
        recon_loss = F.mse_loss(img, out) + 0.1 * F.smooth_l1_loss(img, out)

        # kl divergence to the uniform prior
        flat = logits.permute(0, 2, 3, 1).flatten(1, 2)
        log_qy = F.log_softmax(flat, dim=-1)
        log_uniform = torch.log(torch.tensor(1.0 / self.num_tokens, device=img.device))
        kl = (log_qy.exp() * (log_qy - log_uniform)).sum(-1).mean()
        return recon_loss + self.kl_div_loss_weight * kl


def cycle_batches(seed):
    g = torch.Generator().manual_seed(seed)
    ramp = torch.linspace(-1, 1, IMAGE_SIZE)
    while True:
        ph = torch.rand(BATCH_SIZE, 3, 1, 1, generator=g) * 6.28
        fr = torch.randint(1, 9, (BATCH_SIZE, 3, 1, 1), generator=g)
        img = torch.sin(fr * ramp.view(1, 1, 1, -1) * 3 + ph) * torch.cos(
            fr * ramp.view(1, 1, -1, 1) * 2 - ph
        )
        yield img + 0.05 * torch.randn(img.shape, generator=g)


torch.manual_seed(0)
vae = DiscreteVAE(
    IMAGE_SIZE,
    NUM_TOKENS,
    CODEBOOK_DIM,
    NUM_LAYERS,
    NUM_RESNET_BLOCKS,
    HIDDEN_DIM,
    kl_div_loss_weight=KL_WEIGHT,
).to(device)
opt = torch.optim.Adam(vae.parameters(), lr=LEARNING_RATE)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=LR_DECAY)
data = cycle_batches(seed=3)
temp = START_TEMP

with TemporaryDirectory() as folder:
    for i in range(NUM_STEPS):
        images = next(data).to(device)
        loss = vae(images, temp=temp)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(
            f"{i} - loss {loss.item():.8f} temp {temp:.4f} lr {sched.get_last_lr()[0]:.6f}",
            flush=True,
        )

        temp = max(temp * math.exp(-ANNEAL * (i + 1)), TEMP_MIN)
        sched.step()

        if (i + 1) % SAVE_EVERY == 0:
            vae.eval()
            k = min(4, BATCH_SIZE)
            codes = vae.get_codebook_indices(images[:k])
            with torch.no_grad():
                hard = vae.decode(codes)
            print(
                f"   hard recon mse {F.mse_loss(hard, images[:k]).item():.5f}, "
                f"{codes.unique().numel()} codes in use",
                flush=True,
            )
            torch.save({"weights": vae.state_dict(), "step": i}, str(Path(folder) / "vae.pt"))
            vae.train()
